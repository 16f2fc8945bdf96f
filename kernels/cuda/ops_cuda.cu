// ops_cuda.cu - the two tables, put together from the families.
#include "kernels/cuda/ops_cuda.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"

template <typename T> static Ops make_table() {
    Ops o = {};
    o.name = "cuda";
    o.isa = cuda_device()->isa;
    o.elem_size = sizeof(T);
    // Four waves of tiles, so that the last one costs little.
    o.busy_outputs = (size_t)cuda_device()->n_sm * 4 * 128 * 128;
    memory_ops<T>(&o);
    norm_ops<T>(&o);
    rope_ops<T>(&o);
    optim_ops<T>(&o);
    grad_ops<T>(&o);
    act_ops<T>(&o);
    heads_ops<T>(&o);
    cache_ops<T>(&o);
    classifier_ops<T>(&o);
    embed_ops<T>(&o);
    gemm_ops<T>(&o);
    sdpa_ops<T>(&o);
    lowrank_ops<T>(&o);
    peak_ops<T>(&o);
    return o;
}

const Ops *ops_cuda(ElemType act) {
    if (act == TYPE_BF16) {
        static const Ops table = make_table<bf16>();
        return &table;
    }
    static const Ops table = make_table<float>();
    return &table;
}
