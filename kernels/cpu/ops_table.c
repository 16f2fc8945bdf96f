// ops_table.c - the op table of one instruction set.
#include "kernels/cpu/lowrank.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/peak.h"
#include "kernels/cpu/sdpa.h"

#define TEXT_OF(name)  #name
#define ISA_TEXT(name) TEXT_OF(name)

static void measure_peaks(Peaks *out) {
    *out = (Peaks){.fma_flops = peak_fma_flops(),
                   .bf16_flops = peak_bf16_flops(),
                   .read_bytes = peak_read_bytes(),
                   .has_bf16 = peak_has_bf16()};
}

static const Ops table = {
    .name = "cpu",
    .isa = ISA_TEXT(ISA),
    .elem_size = sizeof(float),
    .busy_outputs = (size_t)1 << 20,
    .alloc = alloc_cpu,
    .free = free_cpu,
    .zero = zero_cpu,
    .copy = copy_cpu,
    .upload_bytes = copy_cpu,
    .download_bytes = copy_cpu,
    .upload = upload_cpu,
    .download = download_cpu,
    .sync = sync_cpu,
    .measure_peaks = measure_peaks,
    .weight_bytes = weight_bytes_cpu,
    .weight_prepare = weight_prepare_cpu,
    .matmul = matmul_cpu,
    .matmul_dx = matmul_dx_cpu,
    .matmul_dw = matmul_dw_cpu,
    .bias_dw = bias_dw_cpu,
    .gemm = gemm_cpu,
    .embed_forward = embed_forward_cpu,
    .embed_backward = embed_backward_cpu,
    .add_norm_forward = add_norm_forward_cpu,
    .add_norm_backward = add_norm_backward_cpu,
    .qk_norm_rope_forward = qk_norm_rope_forward_cpu,
    .qk_norm_rope_backward = qk_norm_rope_backward_cpu,
    .lowrank_forward = lowrank_forward_cpu,
    .lowrank_backward = lowrank_backward_cpu,
    .concat_heads = concat_heads_cpu,
    .split_heads = split_heads_cpu,
    .bias_add = bias_add_cpu,
    .act_forward = act_forward_cpu,
    .act_backward = act_backward_cpu,
    .add = add_cpu,
    .sdpa_forward = sdpa_forward_cpu,
    .sdpa_backward = sdpa_backward_cpu,
    .sdpa_extend = sdpa_extend_cpu,
    .sdpa_lowrank_extend = sdpa_lowrank_extend_cpu,
    .cache_append = cache_append_cpu,
    .cache_append_latent = cache_append_latent_cpu,
    .classifier = classifier_cpu,
    .softcap = softcap_cpu,
    .loss_add = loss_add_cpu,
    .step_begin = step_begin_cpu,
    .grad_sumsq = grad_sumsq_cpu,
    .grad_finish = grad_finish_cpu,
    .adamw = adamw_cpu,
    .muon_momentum = muon_momentum_cpu,
    .muon_normalize = muon_normalize_cpu,
    .scale_copy = scale_copy_cpu,
    .axpy = axpy_cpu,
    .muon_apply = muon_apply_cpu,
};

const Ops *ops_cpu_table(void) {
    return &table;
}
