// train_gpt.c - the CPU program. Everything is behind gpt_main; the CUDA program is train_gpt.cu.
#include "gpt/run.h"

static const Ops *open_cpu(ElemType act, Error *err) {
    (void)act;  // the CPU's activations are fp32
    (void)err;
    return ops_cpu();
}

int main(int argc, char **argv) {
    static const Device devices[] = {{"cpu", open_cpu}};
    const Program program = {devices, 1};
    return gpt_main(argc, argv, &program);
}
