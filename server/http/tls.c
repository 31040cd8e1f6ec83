/* server/http/tls.c - see tls.h. A list of files becomes an immutable, counted set of credentials;
 * a reload swaps the set. */
#include "server/http/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/lock.h"
#include "core/base/log.h"
#include "server/config.h"

enum { FILE_BYTES_MAX = 1 << 20, CHAIN_MAX = 32 };

/* The server's order counts: what is quick on its machine is what all clients get. */
const char http_tls_priorities[] =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:-CIPHER-ALL:"
    "+AES-256-GCM:+CHACHA20-POLY1305:+AES-128-GCM:-MAC-ALL:+AEAD:%SERVER_PRECEDENCE";

struct http_tls_certs {
    atomic_uint n_refs;
    gnutls_certificate_credentials_t cred;
    bool needs_client;         /* a certificate of the client's */
    gnutls_datum_t ticket_key; /* of sessions that may be resumed; none if needs_client */
    time_t begins, ends;
};

struct http_tls {
    const struct srv_config *cfg;
    struct {                    /* with `lock` held */
        struct core_mutex lock; /* CORE_RANK_LEAF */
        struct http_tls_certs *certs;
    } sync;
};

/* ---- files ------------------------------------------------------------------------- */

/* "--tls-cert FILE: what is wrong". */
static int bad(const char *name, const char *path, const char *why, struct core_err *err)
{
    char flag[32];

    snprintf(flag, sizeof(flag), "%s", name);
    for (char *c = flag; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return core_err_set_param(err, CORE_E_BAD_FIELD, name, "--%s %s: %s", flag, path, why);
}

static void forget(gnutls_datum_t *d)
{
    if (d->data)
        explicit_bzero(d->data, d->size);
    core_free(d->data);
    *d = (gnutls_datum_t){0};
}

/* Into memory and not mapped: a file that is cut short while we read it must not kill us. */
static int read_all(int fd, gnutls_datum_t *out)
{
    ssize_t n;

    out->data = core_malloc(FILE_BYTES_MAX);
    if (!out->data)
        return ENOMEM;
    while ((n = read(fd, out->data + out->size, FILE_BYTES_MAX - out->size)) > 0)
        out->size += (unsigned)n;
    return n < 0 ? errno : out->size == FILE_BYTES_MAX ? EFBIG : 0;
}

static int read_file(const char *name, const char *path, gnutls_datum_t *out, struct core_err *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st = {0};
    int why = fd < 0 || fstat(fd, &st) < 0 ? errno : 0;

    if (!why)
        why = read_all(fd, out);
    if (!why && out->data && !strcmp(name, "tls_key") && st.st_mode & S_IROTH)
        core_log(CORE_LOG_WARN, "event=tls warning=\"everybody may read the key\" file=%s", path);
    if (fd >= 0)
        close(fd);
    return why ? bad(name, path, strerror(why), err) : 0;
}

/* ---- credentials ------------------------------------------------------------------------ */

static void unref(struct http_tls_certs *c)
{
    if (!c || atomic_fetch_sub(&c->n_refs, 1) != 1)
        return;
    if (c->cred)
        gnutls_certificate_free_credentials(c->cred);
    if (c->ticket_key.data) {
        explicit_bzero(c->ticket_key.data, c->ticket_key.size);
        gnutls_free(c->ticket_key.data);
    }
    core_free(c);
}

static void note_validity(struct http_tls_certs *c, gnutls_x509_crt_t crt, const char *path)
{
    const time_t now = time(NULL);

    c->begins = gnutls_x509_crt_get_activation_time(crt);
    c->ends = gnutls_x509_crt_get_expiration_time(crt);
    if (now < c->begins || now > c->ends)
        core_log(CORE_LOG_WARN, "event=tls warning=\"the certificate is not valid today\" file=%s",
                 path);
}

/* Certificate, chain and key. The key is looked at alone first, so that an error is its own. */
static int take_pair(struct http_tls_certs *c, const struct srv_config *cfg,
                     const gnutls_datum_t *cert, const gnutls_datum_t *key, struct core_err *err)
{
    gnutls_x509_crt_t chain[CHAIN_MAX];
    gnutls_x509_privkey_t secret = NULL;
    unsigned n_chain = CHAIN_MAX;
    int rc = gnutls_x509_crt_list_import(chain, &n_chain, cert, GNUTLS_X509_FMT_PEM,
                                         GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);

    if (rc <= 0)
        return bad("tls_cert", cfg->tls_cert,
                   rc < 0 ? gnutls_strerror(rc) : "no certificate in PEM form", err);
    n_chain = (unsigned)rc;
    rc = gnutls_x509_privkey_init(&secret);
    if (rc == 0)
        rc = gnutls_x509_privkey_import2(secret, key, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (rc < 0) {
        rc = bad("tls_key", cfg->tls_key, gnutls_strerror(rc), err);
        goto out;
    }
    rc = gnutls_certificate_set_x509_key(c->cred, chain, (int)n_chain, secret);
    if (rc < 0)
        rc = bad("tls_key", cfg->tls_key,
                 rc == GNUTLS_E_CERTIFICATE_KEY_MISMATCH ? "not the key of --tls-cert"
                                                         : gnutls_strerror(rc),
                 err);
    else
        note_validity(c, chain[0], cfg->tls_cert);
out:
    for (unsigned i = 0; i < n_chain; i++)
        gnutls_x509_crt_deinit(chain[i]);
    if (secret)
        gnutls_x509_privkey_deinit(secret);
    return rc < 0 ? rc : 0;
}

static int take_clients(struct http_tls_certs *c, const struct srv_config *cfg,
                        struct core_err *err)
{
    gnutls_datum_t ca = {0};
    int rc = read_file("tls_client_ca", cfg->tls_client_ca, &ca, err);

    if (rc == 0) {
        rc = gnutls_certificate_set_x509_trust_mem(c->cred, &ca, GNUTLS_X509_FMT_PEM);
        if (rc <= 0)
            rc = bad("tls_client_ca", cfg->tls_client_ca,
                     rc < 0 ? gnutls_strerror(rc) : "no certificate in PEM form", err);
    }
    c->needs_client = true;
    forget(&ca);
    return rc < 0 ? rc : 0;
}

static int read_certs(struct http_tls_certs **out, const struct srv_config *cfg,
                      struct core_err *err)
{
    struct http_tls_certs *c = core_calloc(1, sizeof(*c));
    gnutls_datum_t cert = {0}, key = {0};
    int rc;

    if (!c)
        return core_err_nomem(err, "certificates");
    atomic_store(&c->n_refs, 1);
    rc = gnutls_certificate_allocate_credentials(&c->cred) < 0
             ? core_err_nomem(err, "certificates")
             : read_file("tls_cert", cfg->tls_cert, &cert, err);
    if (rc == 0)
        rc = read_file("tls_key", cfg->tls_key, &key, err);
    if (rc == 0)
        rc = take_pair(c, cfg, &cert, &key, err);
    if (rc == 0 && cfg->tls_client_ca[0])
        rc = take_clients(c, cfg, err);
    else if (rc == 0 && gnutls_session_ticket_key_generate(&c->ticket_key) < 0)
        rc = core_err_nomem(err, "certificates");
    forget(&cert);
    forget(&key);
    if (rc < 0)
        unref(c);
    else
        *out = c;
    return rc;
}

/* ---- what is in force ------------------------------------------------------------------- */

int http_tls_check(const struct srv_config *cfg, struct core_err *err)
{
    if (cfg->tls_cert[0] && !cfg->tls_key[0])
        return core_err_set_param(err, CORE_E_MISSING_FIELD, "tls_key",
                                  "--tls-cert needs --tls-key FILE beside it");
    if (!cfg->tls_cert[0] && (cfg->tls_key[0] || cfg->tls_client_ca[0]))
        return core_err_set_param(err, CORE_E_MISSING_FIELD, "tls_cert",
                                  "--tls-key and --tls-client-ca need --tls-cert FILE beside them");
    return 0;
}

int http_tls_reload(struct http_tls *t, struct core_err *err)
{
    struct http_tls_certs *certs = NULL, *old;
    const int rc = read_certs(&certs, t->cfg, err);

    if (rc < 0)
        return rc;
    core_lock(&t->sync.lock);
    old = t->sync.certs;
    t->sync.certs = certs;
    core_unlock(&t->sync.lock);
    unref(old);
    return 0;
}

int http_tls_new(struct http_tls **out, const struct srv_config *cfg, struct core_err *err)
{
    struct http_tls *t = core_calloc(1, sizeof(*t));
    int rc;

    if (!t)
        return core_err_nomem(err, "certificates");
    t->cfg = cfg;
    core_mutex_init(&t->sync.lock, CORE_RANK_LEAF);
    rc = http_tls_reload(t, err);
    if (rc < 0)
        http_tls_free(&t);
    else
        *out = t;
    return rc;
}

void http_tls_free(struct http_tls **tp)
{
    struct http_tls *t = *tp;

    if (!t)
        return;
    unref(t->sync.certs);
    core_mutex_destroy(&t->sync.lock);
    core_free(t);
    *tp = NULL;
}

static struct http_tls_certs *in_force(struct http_tls *t)
{
    struct http_tls_certs *c;

    core_lock(&t->sync.lock);
    c = t->sync.certs;
    atomic_fetch_add(&c->n_refs, 1);
    core_unlock(&t->sync.lock);
    return c;
}

void http_tls_until(struct http_tls *t, char day[16])
{
    struct http_tls_certs *c = in_force(t);
    struct tm tm = {0};

    gmtime_r(&c->ends, &tm);
    strftime(day, 16, "%Y-%m-%d", &tm);
    unref(c);
}

void http_tls_log(struct http_tls *t)
{
    char day[16];

    http_tls_until(t, day);
    core_log(CORE_LOG_INFO, "event=tls file=%s until=%s client_certificates=%s", t->cfg->tls_cert,
             day, t->cfg->tls_client_ca[0] ? "required" : "off");
}

/* ---- sessions ----------------------------------------------------------------------------- */

static gnutls_alert_description_t alert_of(gnutls_session_t s, int rc, unsigned status)
{
    if (rc == GNUTLS_E_NO_CERTIFICATE_FOUND)
        return gnutls_protocol_get_version(s) == GNUTLS_TLS1_3 ? GNUTLS_A_CERTIFICATE_REQUIRED
                                                               : GNUTLS_A_HANDSHAKE_FAILURE;
    if (status & GNUTLS_CERT_SIGNER_NOT_FOUND)
        return GNUTLS_A_UNKNOWN_CA;
    if (status & (GNUTLS_CERT_EXPIRED | GNUTLS_CERT_NOT_ACTIVATED))
        return GNUTLS_A_CERTIFICATE_EXPIRED;
    return GNUTLS_A_BAD_CERTIFICATE;
}

/* Called within the handshake. GnuTLS leaves alerts to its caller, and libmicrohttpd sends none. */
static int verify_client(gnutls_session_t s)
{
    static char client[] = GNUTLS_KP_TLS_WWW_CLIENT;
    gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                     .data = (unsigned char *)client};
    gnutls_alert_description_t alert;
    unsigned status = 0;
    const int rc = gnutls_certificate_verify_peers(s, &purpose, 1, &status);

    if (rc == 0 && status == 0)
        return 0;
    alert = alert_of(s, rc, status);
    core_log(CORE_LOG_INFO, "event=tls refused=client reason=%s", gnutls_alert_get_name(alert));
    (void)gnutls_alert_send(s, GNUTLS_AL_FATAL, alert);
    return -1;
}

struct http_tls_certs *http_tls_enter(struct http_tls *t, void *session)
{
    gnutls_session_t s = session;
    struct http_tls_certs *c = in_force(t);

    gnutls_credentials_clear(s);
    if (gnutls_credentials_set(s, GNUTLS_CRD_CERTIFICATE, c->cred) < 0) {
        unref(c);
        return NULL;
    }
    if (c->needs_client) {
        gnutls_certificate_server_set_request(s, GNUTLS_CERT_REQUEST);
        gnutls_session_set_verify_function(s, verify_client);
    } else {
        (void)gnutls_session_ticket_enable_server(s, &c->ticket_key); /* else a full handshake */
    }
    return c;
}

void http_tls_leave(struct http_tls_certs *certs)
{
    unref(certs);
}

bool http_tls_is_let_in(const struct http_tls_certs *certs, void *session)
{
    unsigned n = 0;

    return !certs->needs_client || (gnutls_certificate_get_peers(session, &n) && n > 0);
}

static int no_certificate(gnutls_session_t s, const gnutls_datum_t *ca, int n_cas,
                          const gnutls_pk_algorithm_t *algorithm, int n_algorithms,
                          gnutls_pcert_st **pcert, unsigned *n_pcerts, gnutls_privkey_t *key)
{
    (void)s, (void)ca, (void)n_cas, (void)algorithm, (void)n_algorithms;
    (void)pcert, (void)n_pcerts, (void)key;
    return -1;
}

const void *const http_tls_no_certificate = (const void *)no_certificate;
