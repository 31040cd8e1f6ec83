/* server/cmd/help.c - peftd help: what the two tables say, of commands (cmd.c) and of settings
 * (server/config.h), as text, as a manual page and as a completion. */
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "server/build.h"
#include "server/cmd/cmd.h"
#include "server/config.h"

static const char settings_how[] =
    "Each setting is a flag --max-queue, the environment PEFTD_MAX_QUEUE, or a key \"max_queue\" "
    "of the --config file, in this order. SIZE takes KiB, MiB, GiB.";

static bool reads(const struct cmd *c, const char *setting)
{
    const size_t n = strlen(setting);

    if (!c->settings || !strcmp(c->settings, "*"))
        return c->settings != NULL;
    for (const char *s = c->settings; *s; s += strcspn(s, " "), s += *s == ' ')
        if (strcspn(s, " ") == n && !strncmp(s, setting, n))
            return true;
    return false;
}

/* ---- text ---------------------------------------------------------------------- */

/* Lines of at most 95 columns. */
static void write_wrapped(struct core_buf *out, const char *text)
{
    size_t column = 0;

    while (*text) {
        const size_t n = strcspn(text, " ");

        if (column && column + 1 + n > 95) {
            core_buf_str(out, "\n");
            column = 0;
        } else if (column) {
            core_buf_str(out, " ");
            column++;
        }
        core_buf_add(out, text, n);
        column += n;
        text += n + (text[n] == ' ');
    }
    core_buf_str(out, "\n");
}

static void write_setting(const struct srv_setting *s, struct core_buf *out)
{
    char head[96];

    snprintf(head, sizeof(head), "%s %s", s->flag, s->value);
    core_buf_printf(out, "  %-28s %s", head, s->help);
    if (s->words)
        core_buf_printf(out, ": %s", s->words);
    if (s->def[0])
        core_buf_printf(out, " [%s]", s->def);
    core_buf_str(out, "\n");
}

static void write_one(const struct cmd *c, struct core_buf *out)
{
    struct srv_setting s;
    bool is_first = true;

    core_buf_printf(out, "usage: peftd %s\n\n", c->usage);
    write_wrapped(out, c->help);
    if (c->more) {
        core_buf_str(out, "\n");
        write_wrapped(out, c->more);
    }
    for (const struct cmd_flag *f = c->flag; f->flag; f++) {
        char head[96];

        snprintf(head, sizeof(head), "%s%s%s", f->flag, f->value ? " " : "",
                 f->value ? f->value : "");
        core_buf_printf(out, "%s  %-28s %s\n", f == c->flag ? "\n" : "", head, f->help);
    }
    for (size_t i = 0; srv_config_setting(i, &s); i++) {
        if (!reads(c, s.name))
            continue;
        if (is_first) {
            core_buf_str(out, "\n");
            write_wrapped(out, settings_how);
            core_buf_str(out, "\n");
        }
        is_first = false;
        write_setting(&s, out);
    }
}

void cmd_write_help(const struct cmd *one, struct core_buf *out)
{
    const struct cmd *c;
    const size_t n = cmd_all(&c);
    struct srv_setting s;

    if (one) {
        write_one(one, out);
        return;
    }
    core_buf_str(out, "peftd: many fine-tuned tasks, one model, one batch\n\n");
    for (size_t i = 0; i < n; i++)
        core_buf_printf(out, "  peftd %s\n      %s\n", c[i].usage, c[i].help);
    core_buf_str(out, "\n");
    write_wrapped(out, settings_how);
    core_buf_str(out, "\n");
    for (size_t i = 0; srv_config_setting(i, &s); i++)
        write_setting(&s, out);
}

/* ---- man(7) -------------------------------------------------------------------- */

/* One line of text: no character of it is roff's. Behind a | a line may end. */
static void man_text(struct core_buf *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        core_buf_str(out, "\\&");
    for (; *text; text++) {
        if (*text == '\\')
            core_buf_str(out, "\\(rs");
        else if (*text == '-')
            core_buf_str(out, "\\-");
        else if (*text == '|')
            core_buf_str(out, "|\\:");
        else
            core_buf_add(out, text, 1);
    }
}

static void man_line(struct core_buf *out, const char *macro, const char *text)
{
    core_buf_str(out, macro);
    man_text(out, text);
    core_buf_str(out, "\n");
}

static void man_item(struct core_buf *out, const char *head, const char *value, const char *text)
{
    core_buf_str(out, ".TP\n\\fB");
    man_text(out, head);
    core_buf_str(out, "\\fR");
    if (value) {
        core_buf_str(out, " \\fI");
        man_text(out, value);
        core_buf_str(out, "\\fR");
    }
    core_buf_str(out, "\n");
    man_line(out, "", text);
}

static void man_settings(struct core_buf *out)
{
    struct srv_setting s;
    struct core_buf text = {0};

    man_line(out, ".SH ", "SETTINGS");
    man_line(out, "", settings_how);
    for (size_t i = 0; srv_config_setting(i, &s); i++) {
        core_buf_clear(&text);
        core_buf_printf(&text, "%s%s%s%s%s%s.", s.help, s.words ? ": " : "", s.words ? s.words : "",
                        s.def[0] ? " (default " : "", s.def, s.def[0] ? ")" : "");
        man_item(out, s.flag, s.value, text.is_short ? s.help : text.p);
    }
    core_buf_release(&text);
}

void cmd_write_man(struct core_buf *out)
{
    const struct cmd *c;
    const size_t n = cmd_all(&c);

    core_buf_printf(out, ".TH PEFTD 1 \"\" \"peftd %s\" \"User Commands\"\n", PEFTD_VERSION);
    core_buf_str(out, ".SH NAME\npeftd \\- many fine\\-tuned tasks, one model, one batch\n");
    man_line(out, ".SH ", "SYNOPSIS");
    for (size_t i = 0; i < n; i++) {
        core_buf_printf(out, "%s\\fBpeftd\\fR ", i ? ".br\n" : "");
        man_line(out, "", c[i].usage);
    }
    man_line(out, ".SH ", "DESCRIPTION");
    man_line(out, "",
             "An inference server. One frozen transformer stays in memory; each task is a small "
             "delta (LoRA, prefix, bottleneck adapter, bias, sparse difference, head, ...) that is "
             "loaded while the server runs, chosen by each request, and computed in the same batch "
             "as all others.");
    man_line(out, ".SH ", "COMMANDS");
    for (size_t i = 0; i < n; i++) {
        man_item(out, c[i].name, NULL, c[i].help);
        if (c[i].more) {
            core_buf_str(out, ".IP\n");
            man_line(out, "", c[i].more);
        }
        for (const struct cmd_flag *f = c[i].flag; f->flag; f++) {
            core_buf_str(out, ".RS\n");
            man_item(out, f->flag, f->value, f->help);
            core_buf_str(out, ".RE\n");
        }
    }
    man_settings(out);
    man_line(out, ".SH ", "EXIT STATUS");
    man_item(out, "0", NULL, "all went well");
    man_item(out, "1", NULL, "it failed; stderr says why");
    man_item(out, "2", NULL, "the command line cannot be right");
    man_line(out, ".SH ", "SEE ALSO");
    man_line(out, "", "GET /docs of a running server, and the files of its documentation.");
}

/* ---- bash ---------------------------------------------------------------------- */

/* What may follow a flag: words, or files of a kind. */
static void bash_values(struct core_buf *out)
{
    struct srv_setting s;

    for (size_t i = 0; srv_config_setting(i, &s); i++) {
        if (s.words) {
            core_buf_printf(out, "        %s) words='", s.flag);
            for (const char *w = s.words; *w; w++)
                core_buf_add(out, *w == '|' ? " " : w, 1);
            core_buf_str(out, "' ;;\n");
        } else if (!strcmp(s.value, "DIR")) {
            core_buf_printf(out,
                            "        %s) compopt -o filenames; "
                            "mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"); return ;;\n",
                            s.flag);
        } else if (!strcmp(s.value, "PATH") || !strcmp(s.value, "FILE")) {
            core_buf_printf(out,
                            "        %s) compopt -o filenames; "
                            "mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return ;;\n",
                            s.flag);
        } else {
            core_buf_printf(out, "        %s) return ;;\n", s.flag);
        }
    }
    core_buf_str(out, "        --base|--tuned|--out) compopt -o filenames; "
                      "mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"); return ;;\n");
}

static void bash_words(const struct cmd *c, struct core_buf *out)
{
    struct srv_setting s;

    core_buf_printf(out, "            %s) words='%s", c->name, c->words ? c->words : "");
    if (c->run == cmd_help) {
        const struct cmd *all;
        const size_t n = cmd_all(&all);

        for (size_t i = 0; i < n; i++)
            core_buf_printf(out, "%s%s", i ? " " : "", all[i].name);
    }
    for (const struct cmd_flag *f = c->flag; f->flag; f++)
        core_buf_printf(out, " %s", f->flag);
    for (size_t i = 0; srv_config_setting(i, &s); i++)
        if (reads(c, s.name))
            core_buf_printf(out, " %s", s.flag);
    core_buf_printf(out, "'%s ;;\n", c->takes_paths ? "; files=1" : "");
}

void cmd_write_bash(struct core_buf *out)
{
    const struct cmd *c;
    const size_t n = cmd_all(&c);

    core_buf_str(out, "# Completion of bash for peftd; written by `peftd help --bash`.\n"
                      "_peftd() {\n"
                      "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                      "    local words='' files=''\n"
                      "    COMPREPLY=()\n"
                      "    case $prev in\n");
    bash_values(out);
    core_buf_str(out, "    esac\n"
                      "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                      "        words='");
    for (size_t i = 0; i < n; i++)
        core_buf_printf(out, "%s%s", i ? " " : "", c[i].name);
    core_buf_str(out, " --help --version'\n"
                      "    elif [ -z \"$words\" ]; then\n"
                      "        case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < n; i++)
        bash_words(&c[i], out);
    core_buf_str(out, "        esac\n"
                      "    fi\n"
                      "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                      "    if [ -n \"$files\" ] && [ \"${cur#-}\" = \"$cur\" ]; then\n"
                      "        compopt -o filenames\n"
                      "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                      "    fi\n"
                      "}\n"
                      "complete -F _peftd peftd\n");
}

/* ---- the command --------------------------------------------------------------- */

int cmd_help(const struct srv_config *cfg, int argc, char **argv)
{
    struct core_buf out = {0};
    const struct cmd *one = argc == 1 ? cmd_find(argv[0]) : NULL;
    int status = 0;

    (void)cfg;
    if (argc == 1 && !strcmp(argv[0], "--man")) {
        cmd_write_man(&out);
    } else if (argc == 1 && !strcmp(argv[0], "--bash")) {
        cmd_write_bash(&out);
    } else if (argc == 0 || one) {
        cmd_write_help(one, &out);
    } else {
        fprintf(stderr, "peftd help: there is no command '%s'\n", argv[0]);
        status = 2;
    }
    if (out.is_short) {
        fprintf(stderr, "peftd help: out of memory\n");
        status = 1;
    } else if (status == 0) {
        fputs(out.p, stdout);
    }
    core_buf_release(&out);
    return status;
}
