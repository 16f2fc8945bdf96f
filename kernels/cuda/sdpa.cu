// sdpa.cu - which kernels compute attention.
#include "kernels/cuda/families.h"
#include "kernels/cuda/sdpa_plain.h"

template <typename T> void sdpa_ops(Ops *o) {
    o->sdpa_forward = sdpa_plain_forward<T>;
    o->sdpa_backward = sdpa_plain_backward<T>;
    o->sdpa_extend = sdpa_plain_extend<T>;
}
template void sdpa_ops<float>(Ops *);
template void sdpa_ops<bf16>(Ops *);
