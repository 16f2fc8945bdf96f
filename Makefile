# Makefile - `make` builds the trainer, `make help` lists the targets, `make info` what was found.
# Everything is found by wildcard: a new source file or test needs no line here.

BUILD ?= build
CC ?= cc
CXX ?= c++
MODE ?= release
OPT_release = -O3
OPT_asan = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer $(GCC_ASAN)
# gcc's sanitizer build sees null formats where there are none; clang does not know the flag.
GCC_ASAN := $(if $(findstring clang,$(shell $(CC) --version)),,-Wno-format-truncation)
OPT_debug = -O0
OPT_fuzz = -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all

WARN = -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Werror
CWARN = $(WARN) -Wstrict-prototypes -Wmissing-prototypes
# No fast-math: NaN checks must hold. The two flags below only drop errno and trap bookkeeping.
COMMON = -g $(OPT_$(MODE)) -I. -MMD -MP -fno-math-errno -fno-trapping-math
OPENMP ?= -fopenmp
CFLAGS_ALL = -std=c11 $(COMMON) $(CWARN) $(or $(OPENMP),-Wno-unknown-pragmas -Wno-unused-variable) $(CFLAGS)
LIBS = $(CJSON_LIB) -lm $(OPENMP) $(LDFLAGS)

# --- cJSON: the system's, or a folder with cJSON.c and cJSON.h where there is none.
ifdef CJSON_DIR
    CJSON_OBJ = $(BUILD)/cjson/cJSON.o
    COMMON += -I$(BUILD)/cjson/include
$(shell mkdir -p $(BUILD)/cjson/include/cjson && cp $(CJSON_DIR)/cJSON.h $(BUILD)/cjson/include/cjson)
else
    CJSON_LIB = -lcjson
endif

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
TEST_OBJ = $(patsubst %.c,$(BUILD)/%.o,$(filter-out test/test_%.c,$(wildcard test/*.c)))
TEST_LIB = $(BUILD)/libtest.a

# --- CUDA: nvcc compiles kernels for GPUs; the C++ compiler compiles the same files for the emulator.
CUDA_HOME ?= $(firstword $(wildcard /usr/local/cuda /opt/cuda /usr/lib/cuda))
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard $(CUDA_HOME)/bin/nvcc))
CUDA ?= $(if $(NVCC),1,0)
# Machine code for these, and PTX of the last one, which drivers compile for newer devices. Others
# (86, 89, 100, 120) add their share of the build time each.
CUDA_ARCHS ?= 80 90
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -I. -MMD -MP -Werror all-warnings -Xcompiler -Wall,-Wextra \
    $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
    -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
CU_SRC := $(wildcard kernels/cuda/*.cu attention/*.cu)
CUDA_OBJ = $(CU_SRC:%.cu=$(BUILD)/cuda/%.o)
EMU_SRC := $(wildcard test/emu/*.cpp)
EMU_RUN = $(EMU_SRC:%.cpp=$(BUILD)/emu/%.o)
EMU_OBJ = $(CU_SRC:%.cu=$(BUILD)/emu/%.o) $(EMU_RUN)
CHECK_OBJ = $(CU_SRC:%.cu=$(BUILD)/check/%.o) $(EMU_RUN)
# Loops are unrolled for GPUs; whether the host compiler does it too is all the same.
CXXFLAGS_ALL = -std=c++17 -fno-threadsafe-statics $(COMMON) $(WARN) -Wno-unknown-pragmas -Wno-unknown-warning-option -Wno-maybe-uninitialized -Wno-pass-failed -DGPU_EMU $(CXXFLAGS)
# Every access of a kernel calls test/emu/emu_check.cpp, never the thread sanitizer itself.
CHECK_CLANG := $(if $(findstring clang,$(shell $(CXX) --version 2>/dev/null)),-mllvm -tsan-instrument-read-before-write=1)
# Registers that were never written hold huge values, where the compiler can do that.
CHECK_FILL := $(shell echo 'int x;' | $(CXX) -ftrivial-auto-var-init=pattern -x c++ -c -o /dev/null - 2>/dev/null && \
    echo -ftrivial-auto-var-init=pattern -DEMU_FILLS_REGISTERS)
CHECK_ALL = -fsanitize=thread $(CHECK_CLANG) $(CHECK_FILL)
CHECK_release = -O1 $(CHECK_ALL)
CHECK_asan = -O1 -fsanitize=thread,undefined -fno-sanitize=alignment -fno-sanitize-recover=all $(CHECK_CLANG)
CHECK_debug = -O0 $(CHECK_ALL)
EMU_TEST_SRC := $(if $(shell command -v $(CXX)),$(wildcard test/kernels/cuda/test_*.c test/emu/test_*.cu))
# Whole models are too slow with every access checked.
EMU_WHOLE = $(addprefix test/kernels/cuda/test_cuda_,train text paths)
EMU_TESTS = $(addprefix $(BUILD)/check/,$(filter-out $(EMU_WHOLE),$(basename $(EMU_TEST_SRC)))) \
    $(if $(EMU_TEST_SRC),$(EMU_WHOLE:%=$(BUILD)/emu/%) $(BUILD)/check/coverage)
RUN_TESTS = mkdir -p $(BUILD)/check/launches && BUILD=$(BUILD) GPU_EMU_COVERAGE=$(BUILD)/check/launches scripts/run_tests.sh

.PHONY: all help info tests test asan check fuzz fuzzers format clean cuda emu mutants kernels
all: $(BUILD)/train_gpt $(if $(filter 1,$(CUDA)),$(BUILD)/train_gptcu) ## build the trainer

help: ## this list
	@grep -hE '^[a-z_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

info: ## what was found on this machine
	@echo "compiler    $(shell $(CC) --version | head -1)"
	@echo "processor   $(ARCH), built for: $(ISAS)"
	@echo "openmp      $(if $(OPENMP),yes,no)"
	@echo "nvcc        $(if $(NVCC),$(NVCC)$(if $(filter 1,$(CUDA)), for sm_$(CUDA_ARCHS), (switched off)),not found)"

$(BUILD)/train_gpt: $(BUILD)/train_gpt.o $(BUILD)/libgpt.a
	$(CC) -o $@ $^ $(CFLAGS_ALL) $(LIBS)

# The CUDA program, for GPUs and on the emulator.
$(BUILD)/train_gptcu: $(BUILD)/cuda/train_gpt.o $(CUDA_OBJ) $(BUILD)/libgpt.a
	$(NVCC) -o $@ $^ -lcublasLt $(addprefix -Xcompiler ,$(OPENMP)) $(CJSON_LIB) -lm
$(BUILD)/train_gpt_emu: $(BUILD)/emu/train_gpt.o $(EMU_OBJ) $(BUILD)/libgpt.a
	$(CXX) -o $@ $^ $(OPT_$(MODE)) $(LIBS)

$(BUILD)/libgpt.a: $(LIB_OBJ) $(ISA_OBJ) $(CJSON_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/cjson/cJSON.o: $(CJSON_DIR)/cJSON.c
	$(CC) -c -O2 -o $@ $<

define ISA_RULE
$(BUILD)/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	$$(CC) -c -o $$@ $$< $$(CFLAGS_ALL) -ffp-contract=fast $$(ISA_FLAGS_$(1)) -DISA=$(1)
endef
$(foreach isa,$(ISAS),$(eval $(call ISA_RULE,$(isa))))
# clang 14 takes minutes to instrument the unrolled register kernels; gcc checks them.
ifneq ($(findstring clang,$(shell $(CC) --version)),)
$(foreach isa,$(ISAS) wide,$(BUILD)/$(isa)/kernels/cpu/gemm_kernel.o): OPT_asan = -O1
endif
# The run-time choice and the tests of every set know which sets were compiled.
GEMM_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard test/kernels/test_gemm*.c))
$(BUILD)/kernels/ops_cpu.o $(GEMM_TESTS:%=%.o): CFLAGS_ALL += $(ISAS:%=-DHAVE_ISA_%)
# A set for tests alone: the code for AVX-512 on processors without it.
ISA_FLAGS_wide = $(if $(filter avx2,$(ISAS)),$(ISA_FLAGS_avx2)) -DLANES=16 -DMR=12 -DA_PAIRS=1 -Wno-psabi
$(eval $(call ISA_RULE,wide))
WIDE_OBJ = $(patsubst %.c,$(BUILD)/wide/%.o,$(wildcard kernels/cpu/gemm*.c))
$(GEMM_TESTS): $(WIDE_OBJ)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) -c -o $@ $< $(CFLAGS_ALL)

# --- Tests: every test/**/test_*.c is a program of its own.
$(TEST_LIB): $(TEST_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(TESTS): $(BUILD)/test/%: $(BUILD)/test/%.o $(TEST_LIB) $(BUILD)/libgpt.a
	$(CC) -o $@ $^ $(CFLAGS_ALL) $(LIBS)

# Fuzz targets: inside the tests with a fixed set of mutants, with `make fuzz` under libFuzzer.
FUZZ = $(patsubst test/fuzz/%.c,$(BUILD)/test/fuzz/%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_MAIN = $(if $(filter fuzz,$(MODE)),-fsanitize=fuzzer,$(BUILD)/test/fuzz/mutate.o)
$(FUZZ): %: %.o $(BUILD)/test/fuzz/mutate.o $(TEST_LIB) $(BUILD)/libgpt.a
	$(CC) -o $@ $(filter-out %/mutate.o,$^) $(FUZZ_MAIN) $(CFLAGS_ALL) $(LIBS)
fuzzers: $(FUZZ)
fuzz: ## libFuzzer programs in build/fuzz (needs clang); run one with a folder of test/fuzz/seeds
	@$(MAKE) CC=clang MODE=fuzz BUILD=build/fuzz ISAS=base fuzzers

# The program as users run it, from shell scripts.
CLI_TESTS = $(patsubst %.sh,$(BUILD)/%,$(wildcard test/cli/test_*.sh))
$(CLI_TESTS) $(BUILD)/test/cli/common: $(BUILD)/%: %.sh
	@mkdir -p $(@D)
	@install -m 755 $< $@
$(CLI_TESTS): $(BUILD)/test/cli/common $(BUILD)/train_gpt $(if $(EMU_TEST_SRC),$(BUILD)/train_gpt_emu)

tests: $(TESTS) $(CLI_TESTS) $(EMU_TESTS) $(FUZZ) ## build the test programs

test: $(TESTS) $(CLI_TESTS) $(EMU_TESTS) $(FUZZ) ## build and run all tests
	@$(RUN_TESTS) $(TESTS) $(CLI_TESTS) $(EMU_TESTS) $(FUZZ)

# --- The emulator and its tests: kernels against the CPU's ops, every access checked.
$(BUILD)/emu/%.o: %.cpp
	@mkdir -p $(@D)
	$(CXX) -c -o $@ $< $(CXXFLAGS_ALL)
$(BUILD)/emu/%.o: %.cu
	@mkdir -p $(@D)
	$(CXX) -x c++ -c -o $@ $< $(CXXFLAGS_ALL)
$(BUILD)/check/%.o: %.cu
	@mkdir -p $(@D)
	$(CXX) -x c++ -c -o $@ $< $(filter-out $(OPT_$(MODE)),$(CXXFLAGS_ALL)) $(CHECK_$(MODE))
TWIN = $(patsubst %.c,$(BUILD)/%.o,$(wildcard test/kernels/cuda/*twin.c))
$(BUILD)/check/test/kernels/%: $(BUILD)/test/kernels/%.o $(TWIN) $(CHECK_OBJ) $(TEST_LIB) $(BUILD)/libgpt.a
	@mkdir -p $(@D)
	$(CXX) -o $@ $^ $(OPT_$(MODE)) $(LIBS)
$(BUILD)/emu/test/kernels/%: $(BUILD)/test/kernels/%.o $(TWIN) $(EMU_OBJ) $(TEST_LIB) $(BUILD)/libgpt.a
	@mkdir -p $(@D)
	$(CXX) -o $@ $^ $(OPT_$(MODE)) $(LIBS)
$(BUILD)/check/test/emu/%: $(BUILD)/check/test/emu/%.o $(EMU_RUN) $(TEST_LIB) $(BUILD)/libgpt.a
	$(CXX) -o $@ $^ $(OPT_$(MODE)) $(LIBS)

emu: $(EMU_TESTS) ## build and run the kernel tests on the emulator
	@$(RUN_TESTS) $(EMU_TESTS)

# Behind the other tests, which leave there what they launched: was every kernel?
$(BUILD)/check/coverage: test/emu/coverage.sh
	@mkdir -p $(@D)
	@install -m 755 $< $@

mutants: ## do the tests notice removed barriers, waits and guards? FILES=kernels/cuda/norm.cu
	@test/emu/mutants.py $(FILES)

# --- The same kernels and tests for GPUs.
$(BUILD)/cuda/%.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) -c -o $@ $< $(NVCC_FLAGS)
$(BUILD)/cuda/test/kernels/%: $(BUILD)/test/kernels/%.o $(TWIN) $(CUDA_OBJ) $(TEST_LIB) $(BUILD)/libgpt.a
	@mkdir -p $(@D)
	$(NVCC) -o $@ $^ -lcublasLt $(addprefix -Xcompiler ,$(OPENMP)) $(CJSON_LIB) -lm

cuda: $(if $(filter 1,$(CUDA)),$(CUDA_OBJ)) ## compile the kernels with nvcc, where it is found

kernels: ## registers, shared memory and spills of every kernel; fails on spills in attention
	@NVCC="$(NVCC)" BUILD="$(BUILD)" scripts/check_kernels.sh

asan: ## all tests under AddressSanitizer and UBSan
	@$(MAKE) MODE=asan BUILD=build/asan test

check: ## include rules and style rules that a compiler does not know
	@scripts/check_style.sh

format: ## clang-format over the tree
	clang-format -i $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')

clean: ## remove everything built
	rm -rf build

.SECONDARY:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
