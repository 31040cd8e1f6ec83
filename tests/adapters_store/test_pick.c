/* tests/adapters_store/test_pick.c - which files of an upload are kept, and what is told
 * of those that are no adapter. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "adapters_store/ads_pick.h"
#include "core/base/alloc.h"
#include "core/base/err.h"

Suite *pick_suite(void);

enum { FILES_MAX = 16 };

/* `names` separated by commas to files without bytes; the code. */
static int pick(struct ads_pick *p, const char *names, struct core_err *err)
{
    static char text[1000];
    struct core_file file[FILES_MAX];
    size_t n = 0;

    snprintf(text, sizeof(text), "%s", names);
    for (char *s = strtok(text, ","); s; s = strtok(NULL, ","))
        file[n++] = (struct core_file){.name = s};
    return ads_pick(p, file, n, err);
}

static void assert_picked(const char *names, const char *kept, const char *ignored)
{
    struct core_err err = {0};
    struct ads_pick p = {0};
    char got[1000] = "";

    ck_assert_msg(pick(&p, names, &err) == 0, "%s: %s", names, err.msg);
    for (size_t i = 0; i < p.n; i++) {
        strcat(got, i ? "," : "");
        strcat(got, p.file[i].name);
    }
    ck_assert_str_eq(got, kept);
    ck_assert_str_eq(p.ignored.p, ignored);
    ads_pick_release(&p);
}

#define PEFT "adapter_config.json,adapter_model.safetensors"

START_TEST(what_nobody_reads_is_ignored_and_listed)
{
    assert_picked(PEFT, PEFT, "[]");
    assert_picked(PEFT ",README.md,my notes.txt,optimizer.pt,scheduler.pt,trainer_state.json,"
                       "training_args.bin,rng_state.pth",
                  PEFT,
                  "[\"README.md\", \"my notes.txt\", \"optimizer.pt\", \"scheduler.pt\", "
                  "\"trainer_state.json\", \"training_args.bin\", \"rng_state.pth\"]");
    assert_picked("version.json,reason.txt,delta.json", "delta.json",
                  "[\"version.json\", \"reason.txt\"]");
    assert_picked("a \"b\\c\n\xff.txt,caf\xc3\xa9," PEFT, PEFT,
                  "[\"a \\\"b\\\\c??.txt\", \"caf\xc3\xa9\"]");
}
END_TEST

START_TEST(the_adapters_folder_is_found)
{
    assert_picked("out/adapter_config.json,out/adapter_model.bin,out/notes",
                  "adapter_config.json,adapter_model.bin", "[\"out/notes\"]");
    /* A Trainer's folder: the finished adapter, and one that is no more than a stage. */
    assert_picked("o/checkpoint-10/adapter_config.json,o/checkpoint-10/adapter_model.safetensors,"
                  "o/checkpoint-10/optimizer.pt,o/adapter_config.json,o/adapter_model.safetensors",
                  PEFT,
                  "[\"o/checkpoint-10/adapter_config.json\", "
                  "\"o/checkpoint-10/adapter_model.safetensors\", "
                  "\"o/checkpoint-10/optimizer.pt\"]");
    assert_picked("checkpoint-10/adapter_config.json,checkpoint-10/adapter_model.safetensors", PEFT,
                  "[]");
    /* what the folder lacks may stand above it, and nowhere else */
    assert_picked("task.json,a/adapter_config.json,a/adapter_model.bin",
                  "task.json,adapter_config.json,adapter_model.bin", "[]");
    assert_picked("task.json,a/adapter_config.json,a/task.json,b/adapter_model.bin",
                  "adapter_config.json,task.json", "[\"task.json\", \"b/adapter_model.bin\"]");
    assert_picked("a/task.json,b/adapter_model.bin", "task.json,adapter_model.bin", "[]");
}
END_TEST

static const struct {
    const char *names;
    int code;
    const char *says[3];
} bad[] = {
    {"config.json,model.safetensors,tokenizer.json",
     CORE_E_ADAPTER_UNSUPPORTED,
     {"model.safetensors", "whole model", "--model"}},
    {"c/config.json,c/pytorch_model.bin,c/task.json",
     CORE_E_ADAPTER_UNSUPPORTED,
     {"pytorch_model.bin", "whole model", "PEFT"}},
    {"config.json,model-00001-of-00002.safetensors", CORE_E_ADAPTER_UNSUPPORTED, {"whole model"}},
    {"a.gguf,task.json,b.gguf", CORE_E_ADAPTER_INVALID, {"several", "'a.gguf'", "'b.gguf'"}},
    {"a.gguf,model.safetensors", CORE_E_ADAPTER_UNSUPPORTED, {"whole model"}},
    {"a/adapter_config.json,b/adapter_config.json",
     CORE_E_ADAPTER_INVALID,
     {"several adapters", "'a/'", "'b/'"}},
    {"adapter_config.json,other/adapter_config.json",
     CORE_E_ADAPTER_INVALID,
     {"several adapters", "'.'", "'other/'"}},
    {"checkpoint-5/adapter_config.json,checkpoint-10/adapter_config.json",
     CORE_E_ADAPTER_INVALID,
     {"several adapters", "'checkpoint-5/'", "'checkpoint-10/'"}},
    {"checkpoint-x/adapter_config.json,adapter_config.json",
     CORE_E_ADAPTER_INVALID,
     {"several adapters"}},
    {"my.zip", CORE_E_ADAPTER_INVALID, {"my.zip", "archive"}},
    {"a.tar.gz,notes", CORE_E_ADAPTER_INVALID, {"a.tar.gz", "archive"}},
    {"optimizer.pt,trainer_state.json",
     CORE_E_ADAPTER_INVALID,
     {"optimizer.pt", "Trainer", "adapter_config.json"}},
    {"my notes.txt", CORE_E_ADAPTER_INVALID, {"my notes.txt", "adapter_config.json", "delta.json"}},
    {"", CORE_E_ADAPTER_INVALID, {"no files"}},
    {"a/task.json,b/task.json", CORE_E_BAD_FIELD, {"task.json", "twice"}},
    {PEFT ",adapter_config.json", CORE_E_BAD_FIELD, {"adapter_config.json", "twice"}},
};

START_TEST(what_is_no_adapter_is_named)
{
    struct core_err err = {0};
    struct ads_pick p = {0};

    ck_assert_int_eq(pick(&p, bad[_i].names, &err), bad[_i].code);
    for (unsigned i = 0; i < 3 && bad[_i].says[i]; i++)
        ck_assert_msg(strstr(err.msg, bad[_i].says[i]), "%s: %s", bad[_i].names, err.msg);
    ck_assert_str_ne(err.param, "");
    ck_assert_uint_eq(p.n, 0);
    ck_assert_ptr_null(p.ignored.p);
}
END_TEST

/* Every file name that a reader spells is kept: who adds a reader adds it to the table. */
START_TEST(what_the_readers_read_is_kept)
{
    DIR *dir = opendir("core/delta");
    unsigned n = 0;
    char path[300], line[300], name[100];

    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        FILE *f;

        snprintf(path, sizeof(path), "core/delta/%s", e->d_name);
        f = strstr(path, ".c") ? fopen(path, "r") : NULL;
        while (f && fgets(line, sizeof(line), f))
            for (const char *p = line; (p = strchr(p, '"')); p++)
                if (sscanf(p, "\"%99[a-z_.]\"", name) == 1 && strlen(name) > 4 &&
                    p[1 + strlen(name)] == '"' && strchr(name, '.') > name &&
                    (strstr(name, ".json") || strstr(name, ".safetensors") ||
                     strstr(name, ".bin") || strstr(name, ".pt"))) {
                    ck_assert_msg(ads_pick_keeps(name), "%s: %s", path, name);
                    n++;
                }
        if (f)
            fclose(f);
    }
    closedir(dir);
    ck_assert_uint_ge(n, 10);
}
END_TEST

START_TEST(a_lora_of_llama_cpp_is_kept_under_one_name)
{
    assert_picked("my lora.gguf", "adapter.gguf", "[]");
    assert_picked("task.json,a/lora-f16.gguf,a/README.md,a/adapter_model.safetensors",
                  "task.json,adapter.gguf", "[\"a/README.md\", \"a/adapter_model.safetensors\"]");
    /* beside PEFT's own files it is a conversion of them */
    assert_picked(PEFT ",lora.gguf", PEFT, "[\"lora.gguf\"]");
    ck_assert(ads_pick_keeps("adapter.gguf"));
    ck_assert(!ads_pick_keeps("lora.gguf"));
}
END_TEST

START_TEST(folders_of_a_setup_are_numbered)
{
    assert_picked("s/adapter_setup.json,s/b/adapter_config.json,s/b/pytorch_adapter.bin,"
                  "s/a/adapter_config.json,s/a/adapter.safetensors,s/a/notes,"
                  "s/head/head_config.json,s/a/deep/adapter_config.json",
                  "adapter_setup.json,1.adapter_config.json,1.pytorch_adapter.bin,"
                  "0.adapter_config.json,0.adapter.safetensors,2.head_config.json",
                  "[\"s/a/notes\", \"s/a/deep/adapter_config.json\"]");
    /* an adapter beside the tree is no setup, but a question */
    assert_picked("adapter_setup.json,adapter_config.json",
                  "adapter_setup.json,adapter_config.json", "[]");
    ck_assert(ads_pick_keeps("12.adapter_config.json"));
    ck_assert(!ads_pick_keeps("12adapter_config.json"));
    ck_assert(!ads_pick_keeps("1.2.adapter_config.json"));
    ck_assert(!ads_pick_keeps(".adapter_config.json"));
}
END_TEST

static const char *const picked[] = {PEFT ",a,b,c",
                                     "adapter_setup.json,a/adapter_config.json,b/notes"};

START_TEST(picking_survives_every_allocation_failure)
{
    for (long k = 0;; k++) {
        struct ads_pick p = {0};
        int rc;

        ck_assert_int_lt(k, 50);
        core__alloc_fail_at = k;
        rc = pick(&p, picked[_i], NULL);
        core__alloc_fail_at = -1;
        ads_pick_release(&p);
        if (rc == 0) {
            ck_assert_int_gt(k, 0);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
    }
}
END_TEST

Suite *pick_suite(void)
{
    Suite *s = suite_create("adapters_store/pick");
    TCase *t = tcase_create("pick");

    tcase_add_test(t, what_nobody_reads_is_ignored_and_listed);
    tcase_add_test(t, the_adapters_folder_is_found);
    tcase_add_loop_test(t, what_is_no_adapter_is_named, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(t, what_the_readers_read_is_kept);
    tcase_add_test(t, a_lora_of_llama_cpp_is_kept_under_one_name);
    tcase_add_test(t, folders_of_a_setup_are_numbered);
    tcase_add_loop_test(t, picking_survives_every_allocation_failure, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
