# Makefile - `make` builds the trainer, `make help` lists the targets, `make info` what was found.
# Everything is found by wildcard: a new source file or test needs no line here.

BUILD ?= build
CC ?= cc
CXX ?= c++
MODE ?= release
OPT_release = -O3
OPT_asan = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-format-truncation
OPT_debug = -O0

WARN = -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Werror
CWARN = $(WARN) -Wstrict-prototypes -Wmissing-prototypes
# No fast-math: NaN checks must hold. The two flags below only drop errno and trap bookkeeping.
COMMON = -g $(OPT_$(MODE)) -I. -MMD -MP -fno-math-errno -fno-trapping-math
OPENMP ?= -fopenmp
CFLAGS_ALL = -std=c11 $(COMMON) $(CWARN) $(or $(OPENMP),-Wno-unknown-pragmas) $(CFLAGS)
LIBS = -lcjson -lm $(OPENMP) $(LDFLAGS)

# --- Instruction sets: each file of kernels/cpu is compiled once for each of these.
ARCH := $(shell uname -m)
ifeq ($(ARCH),x86_64)
    ISAS ?= base avx2 avx512 avx512bf16
else
    ISAS ?= base
endif
AVX512 = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mprefer-vector-width=512
ISA_FLAGS_base =
ISA_FLAGS_avx2 = -mavx2 -mfma
ISA_FLAGS_avx512 = $(AVX512)
ISA_FLAGS_avx512bf16 = $(AVX512) -mavx512bf16

# --- Files
LIB_SRC := $(wildcard gpt/*.c attention/*.c data/*.c kernels/*.c)
ISA_SRC := $(wildcard kernels/cpu/*.c)
LIB_OBJ = $(LIB_SRC:%.c=$(BUILD)/%.o)
ISA_OBJ = $(foreach isa,$(ISAS),$(ISA_SRC:%.c=$(BUILD)/$(isa)/%.o))
TEST_SRC := $(wildcard test/*/test_*.c test/test_*.c)
TESTS = $(TEST_SRC:%.c=$(BUILD)/%)
TEST_LIB = $(patsubst %.c,$(BUILD)/%.o,$(filter-out test/test_%.c,$(wildcard test/*.c)))

.PHONY: all help info test asan check format clean
all: $(BUILD)/train_gpt ## build the trainer

help: ## this list
	@grep -hE '^[a-z_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

info: ## what was found on this machine
	@echo "compiler    $(shell $(CC) --version | head -1)"
	@echo "processor   $(ARCH), built for: $(ISAS)"
	@echo "openmp      $(if $(OPENMP),yes,no)"
	@echo "nvcc        $(if $(NVCC),$(NVCC),not found)"

$(BUILD)/train_gpt: $(BUILD)/train_gpt.o $(BUILD)/libgpt.a
	$(CC) -o $@ $^ $(CFLAGS_ALL) $(LIBS)

$(BUILD)/libgpt.a: $(LIB_OBJ) $(ISA_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

define ISA_RULE
$(BUILD)/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	$$(CC) -c -o $$@ $$< $$(CFLAGS_ALL) -ffp-contract=fast $$(ISA_FLAGS_$(1)) -DISA=$(1)
endef
$(foreach isa,$(ISAS),$(eval $(call ISA_RULE,$(isa))))
# The run-time choice knows which sets were compiled.
$(BUILD)/kernels/ops_cpu.o: CFLAGS_ALL += $(ISAS:%=-DHAVE_ISA_%)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) -c -o $@ $< $(CFLAGS_ALL)

# --- Tests: every test/**/test_*.c is a program of its own.
$(TESTS): $(BUILD)/test/%: $(BUILD)/test/%.o $(TEST_LIB) $(BUILD)/libgpt.a
	$(CC) -o $@ $^ $(CFLAGS_ALL) $(LIBS)

tests: $(TESTS) ## build the test programs

test: $(TESTS) $(BUILD)/train_gpt ## build and run all tests
	@BUILD=$(BUILD) scripts/run_tests.sh $(TESTS)

asan: ## all tests under AddressSanitizer and UBSan
	@$(MAKE) MODE=asan BUILD=build/asan test

format: ## clang-format over the tree
	clang-format -i $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')

clean: ## remove everything built
	rm -rf build

.SECONDARY:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
