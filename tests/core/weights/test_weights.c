/* tests/core/weights/test_weights.c - the promises of core/weights/weights.h, one sentence a test.
 */
#include "tests/core/weights/golden.h"
#include "tests/support/temp_dir.h"

Suite *weights_suite(void);

static void copy_golden(const char *golden, const char *name)
{
    size_t n;
    uint8_t *bytes = golden_bytes(golden, &n);

    temp_dir_write(name, bytes, n);
    free(bytes);
}

/* A safetensors file with one U8 tensor of one value. */
static void write_one(const char *file, const char *tensor)
{
    char bytes[256];
    const int n =
        snprintf(bytes + 8, sizeof(bytes) - 8,
                 "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", tensor);

    memset(bytes, 0, 8);
    bytes[0] = (char)n;
    temp_dir_write(file, bytes, 8 + (size_t)n + 1);
}

static void write_index(const char *text)
{
    temp_dir_write("model.safetensors.index.json", text, strlen(text));
}

static int open_dir(struct core_err *err)
{
    struct weights *w = NULL;
    const int rc = weights_open(&w, temp_dir, err);

    ck_assert((rc == 0) == (w != NULL));
    if (w)
        touch_tensors(weights_tensors(w));
    weights_close(&w);
    return rc;
}

START_TEST(a_folder_of_one_file_opens)
{
    struct weights *w = NULL;
    struct core_err err = {0};
    const struct tensor *t;

    ck_assert_msg(weights_open(&w, "tests/golden/bases/llama", &err) == 0, "%s", err.msg);
    t = tensor_list_find(weights_tensors(w), "model.embed_tokens.weight");
    ck_assert(t && tensor_is(t, 2, 301, 56));
    ck_assert_uint_eq(weights_bytes(w), 383488);
    ck_assert_ptr_null(weights_gguf(w));
    weights_close(&w);
    ck_assert_ptr_null(w);
    weights_close(&w);
}
END_TEST

START_TEST(a_folder_of_shards_opens_as_one)
{
    struct weights *w = NULL;
    struct core_err err = {0};
    const struct tensor_list *l;

    ck_assert_msg(weights_open(&w, "tests/golden/bases/llama-untied", &err) == 0, "%s", err.msg);
    l = weights_tensors(w);
    ck_assert_uint_eq(l->n, 30);
    for (size_t i = 1; i < l->n; i++)
        ck_assert_int_lt(strcmp(l->t[i - 1].name, l->t[i].name), 0);
    weights_close(&w);
}
END_TEST

START_TEST(a_folder_of_torch_files_opens_whatever_torch_wrote_them)
{
    static const char *const file[] = {"module.bin", "legacy_module.bin"};
    struct weights *w = NULL;
    struct core_err err = {0};

    copy_golden(file[_i], "pytorch_model.bin");
    ck_assert_msg(weights_open(&w, temp_dir, &err) == 0, "%s", err.msg);
    ck_assert_uint_eq(weights_tensors(w)->n, 9);
    ck_assert(tensor_is(tensor_list_find(weights_tensors(w), "0.weight"), 2, 4, 3));
    weights_close(&w);
}
END_TEST

/* Whatever stands in a name elsewhere, and whatever the name of an adapter. */
START_TEST(names_become_todays_only_where_they_are_old)
{
    static const struct {
        const char *old, *today;
    } row[] = {
        {"bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"},
        {"LayerNorm.beta", "LayerNorm.bias"},
        {"layer_scale.gamma", "layer_scale.gamma"},
        {"MyLayerNorm.gamma", "MyLayerNorm.gamma"},
        {"LayerNorm.gamma.weight", "LayerNorm.gamma.weight"},
        {"module.a.module.b", "a.module.b"},
        {"heads.module.1.weight", "heads.module.1.weight"},
        {"modules.a", "modules.a"},
        {"a._orig_mod.b._orig_mod.c", "a.b.c"},
        {"_orig_mod._orig_mod.module.LayerNorm.gamma", "LayerNorm.weight"},
        {"a_orig_mod.b", "a_orig_mod.b"},
        {"_orig_mod", "_orig_mod"},
        {"module.", "module."}, /* nothing would be left */
        {"", ""},
    };
    struct tensor_list l = {0};
    const size_t n = sizeof(row) / sizeof(row[0]);

    for (size_t i = 0; i < n; i++) {
        const struct tensor t = {.name = row[i].old, .type = TENSOR_F32};

        ck_assert_int_eq(tensor_list_add(&l, &t, NULL), 0);
    }
    ck_assert_int_eq(weights_names_today(&l, NULL), 0);
    for (size_t i = 0; i < n; i++)
        ck_assert_str_eq(l.t[i].name, row[i].today);
    tensor_list_release(&l);
}
END_TEST

START_TEST(a_gguf_file_opens_with_its_metadata)
{
    struct weights *w = NULL;
    struct core_err err = {0};
    uint64_t u;

    ck_assert_msg(weights_open(&w, GOLDEN "types.gguf", &err) == 0, "%s", err.msg);
    ck_assert(gguf_get_u64(weights_gguf(w), "t.u8", &u) && u == 200);
    ck_assert_ptr_eq(weights_tensors(w), gguf_tensors(weights_gguf(w)));
    ck_assert_uint_gt(weights_bytes(w), 0);
    weights_close(&w);
}
END_TEST

START_TEST(a_folder_of_a_torch_file_opens)
{
    struct weights *w = NULL;
    struct core_err err = {0};
    struct tensor_list l;

    copy_golden("views.bin", "pytorch_model.bin");
    ck_assert_msg(weights_open(&w, temp_dir, &err) == 0, "%s", err.msg);
    l = *weights_tensors(w);
    assert_as_expected("views.bin", &l);
    weights_close(&w);
}
END_TEST

/* Resident kB of the mapping that an address lies in. */
static long resident_kb(const void *at)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    bool is_here = false;
    long kb = -1;

    ck_assert_ptr_nonnull(f);
    while (kb < 0 && fgets(line, sizeof(line), f)) {
        unsigned long from, to;

        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            is_here = from <= (uintptr_t)at && (uintptr_t)at < to;
        else if (is_here)
            sscanf(line, "Rss: %ld kB", &kb);
    }
    fclose(f);
    ck_assert_int_ge(kb, 0);
    return kb;
}

START_TEST(forgotten_tensors_leave_memory_and_come_back)
{
    struct weights *w = NULL;
    const struct tensor_list *l;

    ck_assert_int_eq(weights_open(&w, "tests/golden/bases/llama", NULL), 0);
    l = weights_tensors(w);
    for (size_t i = 0; i < l->n; i++) {
        uint8_t *copy = malloc(l->t[i].n_bytes);

        memcpy(copy, l->t[i].data, l->t[i].n_bytes);
        weights_forget(w, &l->t[i]);
        weights_expect(w, &l->t[i]);
        ck_assert_mem_eq(copy, l->t[i].data, l->t[i].n_bytes);
        free(copy);
    }
    ck_assert_int_ge(resident_kb(l->t[0].data), 300);
    for (size_t i = 0; i < l->n; i++)
        weights_forget(w, &l->t[i]);
    ck_assert_int_le(resident_kb(l->t[0].data), 64); /* what shares no page with a tensor */
    weights_close(&w);
}
END_TEST

/* Their bytes are in no file: to give the pages back would lose them. */
START_TEST(unpacked_tensors_are_not_forgotten)
{
    struct weights *w = NULL;
    struct tensor_list l;

    copy_golden("views.bin", "pytorch_model.bin");
    ck_assert_int_eq(weights_open(&w, temp_dir, NULL), 0);
    l = *weights_tensors(w);
    for (size_t i = 0; i < l.n; i++)
        weights_forget(w, &l.t[i]);
    assert_as_expected("views.bin", &l);
    weights_close(&w);
}
END_TEST

START_TEST(a_folder_of_torch_shards_opens)
{
    static const char index[] = "{\"weight_map\":{\"whole\":\"1.bin\",\"0.weight\":\"2.bin\"}}";
    struct core_err err = {0};

    copy_golden("views.bin", "1.bin");
    copy_golden("module.bin", "2.bin");
    temp_dir_write("pytorch_model.bin.index.json", index, sizeof(index) - 1);
    ck_assert_msg(open_dir(&err) == 0, "%s", err.msg);
}
END_TEST

START_TEST(safetensors_win_over_torch)
{
    struct core_err err = {0};

    temp_dir_write("pytorch_model.bin", "damaged", 7);
    write_one("model.safetensors", "a");
    ck_assert_msg(open_dir(&err) == 0, "%s", err.msg);
}
END_TEST

static const struct {
    const char *index;
    int rc;
    const char *says;
} indexes[] = {
    {"{\"metadata\":{},\"weight_map\":{\"a\":\"1.st\",\"b\":\"2.st\"}}", 0, ""},
    {"{\"weight_map\":{\"a\":\"1.st\"}}", 0, ""},
    {"{\"weight_map\":{}}", 0, ""},
    {"{\"weight_map\":{\"a\":\"1.st\",\"c\":\"2.st\"}}", CORE_E_ADAPTER_INVALID,
     "tensor c is in none"},
    {"{\"weight_map\":{\"a\":\"1.st\",\"b\":\"again.st\"}}", CORE_E_ADAPTER_INVALID,
     "tensor a is stored twice"},
    {"{\"weight_map\":{\"a\":\"missing.st\"}}", CORE_E_STORE_UNAVAILABLE, "missing.st"},
    {"{\"weight_map\":{\"a\":\"../1.st\"}}", CORE_E_ADAPTER_INVALID, "not a plain file name"},
    {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", CORE_E_ADAPTER_INVALID, "not a plain file name"},
    {"{\"weight_map\":{\"a\":\"..\"}}", CORE_E_ADAPTER_INVALID, "not a plain file name"},
    {"{\"weight_map\":{\"a\":\"\"}}", CORE_E_ADAPTER_INVALID, "not a plain file name"},
    {"{\"weight_map\":{\"a\":1}}", CORE_E_ADAPTER_INVALID, "not a plain file name"},
    {"{\"weight_map\":[]}", CORE_E_ADAPTER_INVALID, "weight_map"},
    {"{}", CORE_E_ADAPTER_INVALID, "weight_map"},
    {"[", CORE_E_ADAPTER_INVALID, "model.safetensors.index.json, line 1"},
    {"", CORE_E_ADAPTER_INVALID, "model.safetensors.index.json"},
};

START_TEST(an_index_names_plain_files_that_hold_its_tensors)
{
    struct core_err err = {0};
    int rc;

    write_one("1.st", "a");
    write_one("2.st", "b");
    write_one("again.st", "a");
    write_index(indexes[_i].index);
    rc = open_dir(&err);
    ck_assert_msg(rc == indexes[_i].rc, "%s: rc %d, %s", indexes[_i].index, rc, err.msg);
    ck_assert_msg(strstr(err.msg, indexes[_i].says), "%s: %s", indexes[_i].index, err.msg);
    ck_assert_msg(!strstr(err.msg, temp_dir), "a path: %s", err.msg);
}
END_TEST

START_TEST(an_index_of_too_many_files_is_refused)
{
    struct core_err err = {0};
    char *text = malloc(40 * 1100), *p = text;

    p += sprintf(p, "{\"weight_map\":{");
    for (int i = 0; i < 1025; i++)
        p += sprintf(p, "%s\"t%d\":\"f%d\"", i ? "," : "", i, i);
    strcpy(p, "}}");
    write_index(text);
    free(text);
    ck_assert_int_eq(open_dir(&err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "too many files"), "%s", err.msg);
}
END_TEST

START_TEST(what_is_no_checkpoint_is_refused_without_its_path)
{
    struct core_err err = {0};
    struct weights *w = NULL;
    char path[128];

    ck_assert_int_eq(open_dir(&err), CORE_E_ADAPTER_INVALID);
    ck_assert(strstr(err.msg, "holds no model.safetensors") && !strstr(err.msg, temp_dir));

    temp_dir_write("x.gguf", "GGML", 4);
    snprintf(path, sizeof(path), "%s/x.gguf", temp_dir);
    err = (struct core_err){0};
    ck_assert_int_eq(weights_open(&w, path, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_str_eq(err.msg, "not a GGUF file");

    temp_dir_write("x.gguf", "", 0);
    ck_assert_int_eq(weights_open(&w, path, NULL), CORE_E_ADAPTER_INVALID);

    snprintf(path, sizeof(path), "%s/none", temp_dir);
    err = (struct core_err){0};
    ck_assert_int_eq(weights_open(&w, path, &err), CORE_E_STORE_UNAVAILABLE);
    ck_assert(!strstr(err.msg, temp_dir));

    temp_dir_write("model.safetensors", "", 0);
    ck_assert_int_eq(open_dir(NULL), CORE_E_ADAPTER_INVALID);
    ck_assert_ptr_null(w);
}
END_TEST

/* A reader for the sweep: opens the folder whatever the bytes. */
static int read_dir(const void *bytes, size_t n, struct core_err *err)
{
    (void)bytes;
    (void)n;
    return open_dir(err);
}

START_TEST(opening_survives_every_allocation_failure)
{
    if (_i == 0) {
        write_one("1.st", "a");
        write_one("2.st", "b");
        write_index(indexes[0].index);
    } else {
        copy_golden("views.bin", "pytorch_model.bin");
    }
    check_every_allocation(read_dir, NULL, 0);
}
END_TEST

Suite *weights_suite(void)
{
    Suite *s = suite_create("core/weights/weights");
    TCase *t = tcase_create("goldens");

    tcase_add_test(t, a_folder_of_one_file_opens);
    tcase_add_test(t, a_folder_of_shards_opens_as_one);
    tcase_add_test(t, names_become_todays_only_where_they_are_old);
    tcase_add_test(t, a_gguf_file_opens_with_its_metadata);
    suite_add_tcase(s, t);

    t = tcase_create("folders");
    tcase_add_checked_fixture(t, temp_dir_make, temp_dir_remove);
    tcase_add_loop_test(t, a_folder_of_torch_files_opens_whatever_torch_wrote_them, 0, 2);
    tcase_add_test(t, a_folder_of_a_torch_file_opens);
    tcase_add_test(t, forgotten_tensors_leave_memory_and_come_back);
    tcase_add_test(t, unpacked_tensors_are_not_forgotten);
    tcase_add_test(t, a_folder_of_torch_shards_opens);
    tcase_add_test(t, safetensors_win_over_torch);
    tcase_add_loop_test(t, an_index_names_plain_files_that_hold_its_tensors, 0,
                        sizeof(indexes) / sizeof(indexes[0]));
    tcase_add_test(t, an_index_of_too_many_files_is_refused);
    tcase_add_test(t, what_is_no_checkpoint_is_refused_without_its_path);
    tcase_add_loop_test(t, opening_survives_every_allocation_failure, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
