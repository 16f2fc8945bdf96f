// train_gpt.cu - the CUDA program: the commands of train_gpt.c, with a GPU where there is one. It
// holds both op tables, so --device cpu works here too. On the emulator it runs without a GPU.
#include "gpt/run.h"
#include "kernels/cuda/ops_cuda.h"

static const Ops *open_cuda(ElemType act, Error *err) {
    return cuda_open(0, err) ? ops_cuda(act) : nullptr;
}

static const Ops *open_cpu(ElemType, Error *) {
    return ops_cpu();  // the CPU's activations are fp32
}

int main(int argc, char **argv) {
    static const Device devices[] = {{"cuda", open_cuda}, {"cpu", open_cpu}};
    const Program program = {devices, 2};
    int status = gpt_main(argc, argv, &program);
    cuda_close();
    return status;
}
