// config.h - every setting is one row of one table (config_table.c): JSON key, type, range, default
// and help. Reading, overriding, validating, printing, help and comparing all walk that table.
#pragma once

#include "attention/attention.h"

enum { CONFIG_TEXT_MAX = 512 };

typedef enum OptimKind { OPTIM_ADAMW, OPTIM_MUON } OptimKind;
typedef enum ScheduleKind {
    SCHEDULE_CONSTANT,
    SCHEDULE_COSINE,
    SCHEDULE_LINEAR,
    SCHEDULE_WSD
} ScheduleKind;
typedef enum MuonUnit { MUON_MATRIX, MUON_HEAD } MuonUnit;
typedef enum MasterKind { MASTER_F32, MASTER_NONE } MasterKind;

// One optimizer group: optim.embed, optim.head, optim.matrix, optim.vector (TensorKind order).
typedef struct OptimGroup {
    int optimizer;  // OptimKind
    double lr, beta1, beta2, eps, decay;
} OptimGroup;

typedef struct Config {
    struct {
        int n_layer, n_embd, n_head;
        int head_dim;    // 0: n_embd / n_head
        int ffn_dim;     // 0: 4 * n_embd
        int vocab_size;  // ids of the tokenizer, unpadded
        int seq_len;
        int norm;  // NormKind
        bool norm_weight, embed_norm;
        int position;  // Position
        double rope_theta, norm_eps;
        bool qk_norm;
        int activation;  // ActKind
        bool bias, tied_embeddings;
        double logit_softcap;  // 0: none
        double init_std;       // 0: 1/sqrt(fan_in) for projections
        double embed_std, head_std;
        bool zero_init_proj;  // wo and c_proj start at zero, else at init_std / sqrt(2 n_layer)
    } model;
    struct {
        char type[16];
        int n_kv_head;  // gqa; 0: not set
        int rank;       // lrkv; -1: not set
        double residual_init_ratio;
        int path;                                                     // AttnPath
        int kv_lora_rank, q_lora_rank, qk_rope_head_dim, v_head_dim;  // mla
    } attention;
    struct {
        char train[CONFIG_TEXT_MAX], val[CONFIG_TEXT_MAX];  // globs, separated by spaces
        char tokenizer[CONFIG_TEXT_MAX];
        bool shuffle;
    } data;
    struct {
        int64_t tokens;   // per optimizer step
        int micro_batch;  // sequences per micro-step, 0: chosen
    } batch;
    struct {
        OptimGroup group[N_KINDS];
        double muon_momentum;
        bool muon_nesterov;
        int muon_steps;       // Newton-Schulz iterations
        int muon_unit;        // MuonUnit
        int muon_compute;     // ElemType: operands of Newton-Schulz
        int master;           // MasterKind
        bool lr_width_scale;  // AdamW rates times (n_embd/768)^-0.5
        double grad_clip;     // 0: none
    } optim;
    struct {
        int kind;  // ScheduleKind
        int64_t warmup_steps;
        double decay_fraction;  // wsd: share of the run that decays
        double final_lr;        // as a fraction of the peak
    } schedule;
    struct {
        int64_t steps, seed;
        int compute;  // ElemType: TYPE_F32 or TYPE_BF16
        int threads;  // 0: all
        bool deterministic;
        int64_t eval_every, eval_tokens;
        int64_t sample_every, sample_tokens;
        char sample_prompt[CONFIG_TEXT_MAX];
        int max_skips;  // non-finite steps in a row before rolling back
        int max_rollbacks;
    } train;
    struct {
        char dir[CONFIG_TEXT_MAX];  // run directory
        int64_t every;
        int keep;
    } checkpoint;
    struct {
        int64_t every;
    } log;
    struct {
        int kv_type;  // ElemType of the cache; TYPE_FX: that of activations
    } generate;
} Config;

// Defaults only.
void config_default(Config *c);
// Every setting whose key is `section` or begins with "section." back to its default; for changing
// the attention type of a config that holds another type's numbers: config_reset(c, "attention").
void config_reset(Config *c, const char *section);
// Defaults, then a JSON file, its "base" chain first (paths relative to the file). Unknown keys,
// wrong types and values out of range are one sentence naming the file, the key, what was expected
// and what was found; c is then unchanged.
bool config_load(Config *c, const char *path, Error *err);
// Defaults, then JSON text (checkpoint metadata); `where` names it in sentences.
bool config_parse(Config *c, const char *json, const char *where, Error *err);
// One "section.field=value".
bool config_override(Config *c, const char *assignment, Error *err);
// Combinations: divisibility, variant checks, sizes; a setting without effect is refused. Call
// after all overrides; fills derived zeros (head_dim, ffn_dim) so that everything below can use the
// numbers as they are.
bool config_finish(Config *c, Error *err);
// The three in a row: a file, its overrides, the check. c is undefined when false.
bool config_open(Config *c, const char *path, const char *const *overrides, int n, Error *err);
// The config as JSON, caller frees with mem_free: every setting except those that have no effect
// and stand at their default (another variant's sizes). Reading it gives the same config.
char *config_print(const Config *c);
// Help for everything (NULL), for one section, or for one key. An error names what is nearest to
// one that does not exist.
bool config_help(FILE *out, const char *section, Error *err);
// Writes into `out` the keys in which a and b differ among those that must not change when a run is
// resumed ("model.n_layer 2 -> 3, ..."); returns how many.
int config_diff(const Config *a, const Config *b, Buf *out);
// The same for the keys that may change (learning rates, schedule, steps, ...), for a notice.
int config_diff_free(const Config *a, const Config *b, Buf *out);

// The attention sizes that this config means, for one micro-batch of B x T; Tmax is the cache
// length.
AttnDims config_attn_dims(const Config *c, int B, int T, int Tmax);
// Sequences of a micro-batch when `ranks` processes share a step: batch.micro_batch, or for 0 the
// largest divisor of a rank's sequences that stays within 8192 tokens; 0 when the step's sequences
// can't be divided over the ranks.
int config_micro_batch(const Config *c, int ranks);
// model.head_dim, or n_embd / n_head when it is still 0.
int config_head_dim(const Config *c);
// vocab_size padded to a multiple of 128.
int config_padded_vocab(const Config *c);
// Initial std of the projections that write into the residual stream (wo, c_proj), whose fan-in is
// given: 0 with zero_init_proj, else the input std / sqrt(2 n_layer).
float config_proj_std(const Config *c, int fan_in);
