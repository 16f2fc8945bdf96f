// config_table.c - every setting of the program, one row each.
// A setting exists by having a row here: the JSON key, where it lies in Config, its default, what
// is allowed and its help. The defaults are the `modern` recipe (configs/modern.json) at a small
// size.
#include "gpt/config_table.h"

#define AT(field)   .offset = offsetof(Config, field)
#define TEXT(field) .offset = offsetof(Config, field), .size = sizeof((Config *)0)->field
#define RANGE(a, b) .min = (a), .max = (b)
#define NEEDS(k, w) .needs_key = (k), .needs_words = (w)

// Counts are doubles on their way through JSON: the largest integer below 2^53.
#define COUNT_MAX 9007199254740991.0

static const Word norm_words[] = {{"rmsnorm", NORM_RMS}, {"layernorm", NORM_LAYER}, {NULL, 0}};
static const Word position_words[] = {
    {"none", POSITION_NONE}, {"learned", POSITION_LEARNED}, {"rope", POSITION_ROPE}, {NULL, 0}};
static const Word act_words[] = {
    {"gelu", ACT_GELU}, {"relu2", ACT_RELU2}, {"swiglu", ACT_SWIGLU}, {NULL, 0}};
static const Word path_words[] = {{"factored", PATH_FACTORED}, {"merged", PATH_MERGED}, {NULL, 0}};
static const Word optim_words[] = {{"adamw", OPTIM_ADAMW}, {"muon", OPTIM_MUON}, {NULL, 0}};
static const Word unit_words[] = {{"matrix", MUON_MATRIX}, {"head", MUON_HEAD}, {NULL, 0}};
static const Word master_words[] = {{"fp32", MASTER_F32}, {"none", MASTER_NONE}, {NULL, 0}};
static const Word schedule_words[] = {{"constant", SCHEDULE_CONSTANT},
                                      {"cosine", SCHEDULE_COSINE},
                                      {"linear", SCHEDULE_LINEAR},
                                      {"wsd", SCHEDULE_WSD},
                                      {NULL, 0}};
static const Word elem_words[] = {{"fp32", TYPE_F32}, {"bf16", TYPE_BF16}, {NULL, 0}};
static const Word kv_words[] = {
    {"auto", TYPE_FX}, {"fp32", TYPE_F32}, {"bf16", TYPE_BF16}, {NULL, 0}};

// The six settings of one optimizer group.
#define GROUP(name, k, kind0, lr0, decay0, what)                                                   \
    {.key = "optim." name ".optimizer",                                                            \
     .type = SETTING_WORD,                                                                         \
     AT(optim.group[k].optimizer),                                                                 \
     .initial = (kind0),                                                                           \
     .words = optim_words,                                                                         \
     .fixed = true,                                                                                \
     .help = "Optimizer of " what "."},                                                            \
        {.key = "optim." name ".lr",                                                               \
         .type = SETTING_F64,                                                                      \
         AT(optim.group[k].lr),                                                                    \
         .initial = (lr0),                                                                         \
         RANGE(0, 100),                                                                            \
         .help = "Peak learning rate of " what "."},                                               \
        {.key = "optim." name ".beta1",                                                            \
         .type = SETTING_F64,                                                                      \
         AT(optim.group[k].beta1),                                                                 \
         .initial = 0.9,                                                                           \
         RANGE(0, 1),                                                                              \
         .open = OPEN_MAX,                                                                         \
         .help = "AdamW: decay of the first moment (muon takes optim.muon_momentum)."},            \
        {.key = "optim." name ".beta2",                                                            \
         .type = SETTING_F64,                                                                      \
         AT(optim.group[k].beta2),                                                                 \
         .initial = 0.95,                                                                          \
         RANGE(0, 1),                                                                              \
         .open = OPEN_MAX,                                                                         \
         .help = "AdamW: decay of the second moment."},                                            \
        {.key = "optim." name ".eps",                                                              \
         .type = SETTING_F64,                                                                      \
         AT(optim.group[k].eps),                                                                   \
         .initial = 1e-10,                                                                         \
         RANGE(0, 1),                                                                              \
         .open = OPEN_MIN,                                                                         \
         .help = "AdamW: added to the root of the second moment."},                                \
    {                                                                                              \
        .key = "optim." name ".decay", .type = SETTING_F64, AT(optim.group[k].decay),              \
        .initial = (decay0), RANGE(0, 100),                                                        \
        .help = "Decoupled weight decay, multiplied by the learning rate."                         \
    }

// clang-format off
const Setting config_table[] = {
    // --- model
    {.key = "model.n_layer", .type = SETTING_INT, AT(model.n_layer), .initial = 4, RANGE(1, 1024),
     .fixed = true, .help = "Transformer layers."},
    {.key = "model.n_embd", .type = SETTING_INT, AT(model.n_embd), .initial = 256,
     RANGE(1, 65536), .fixed = true, .help = "Channels: the width of the residual stream."},
    {.key = "model.n_head", .type = SETTING_INT, AT(model.n_head), .initial = 4, RANGE(1, 1024),
     .fixed = true, .help = "Query heads."},
    {.key = "model.head_dim", .type = SETTING_INT, AT(model.head_dim), RANGE(0, 1024),
     .fixed = true, .help = "Width of a head; 0: n_embd / n_head."},
    {.key = "model.ffn_dim", .type = SETTING_INT, AT(model.ffn_dim), RANGE(0, 1048576),
     .fixed = true, .help = "Hidden width of the MLP; 0: 4 n_embd."},
    {.key = "model.vocab_size", .type = SETTING_INT, AT(model.vocab_size), .initial = 50257,
     RANGE(1, 16777216), .fixed = true,
     .help = "Token ids of the tokenizer; memory is padded to a multiple of 128."},
    {.key = "model.seq_len", .type = SETTING_INT, AT(model.seq_len), .initial = 256,
     RANGE(1, 1048576), .fixed = true, .help = "Tokens of a training sequence."},
    {.key = "model.norm", .type = SETTING_WORD, AT(model.norm), .initial = NORM_RMS,
     .words = norm_words, .fixed = true,
     .help = "Normalisation before attention, MLP and head."},
    {.key = "model.norm_weight", .type = SETTING_BOOL, AT(model.norm_weight), .fixed = true,
     .help = "Norms have a learned gain (layernorm with model.bias: and a bias)."},
    {.key = "model.embed_norm", .type = SETTING_BOOL, AT(model.embed_norm), .initial = 1,
     .fixed = true, .help = "One more norm directly after the embedding."},
    {.key = "model.position", .type = SETTING_WORD, AT(model.position), .initial = POSITION_ROPE,
     .words = position_words, .fixed = true, .help = "How tokens know their position."},
    {.key = "model.rope_theta", .type = SETTING_F64, AT(model.rope_theta), .initial = 10000,
     RANGE(1, 1e12), .fixed = true, NEEDS("model.position", "rope"),
     .help = "Base of the rotation frequencies: angle t * theta^(-2i/n)."},
    {.key = "model.norm_eps", .type = SETTING_F64, AT(model.norm_eps), .initial = 1e-6,
     RANGE(0, 0.1), .open = OPEN_MIN, .fixed = true,
     .help = "Added to the mean square or variance in every norm."},
    {.key = "model.qk_norm", .type = SETTING_BOOL, AT(model.qk_norm), .initial = 1, .fixed = true,
     .help = "RMS-normalise each head's queries and keys."},
    {.key = "model.activation", .type = SETTING_WORD, AT(model.activation), .initial = ACT_RELU2,
     .words = act_words, .fixed = true, .help = "Activation of the MLP."},
    {.key = "model.bias", .type = SETTING_BOOL, AT(model.bias), .fixed = true,
     .help = "Linear layers and layer norms have biases."},
    {.key = "model.tied_embeddings", .type = SETTING_BOOL, AT(model.tied_embeddings),
     .fixed = true,
     .help = "The head is the embedding matrix (head_std and optim.head then have no tensor)."},
    {.key = "model.logit_softcap", .type = SETTING_F64, AT(model.logit_softcap), .initial = 15,
     RANGE(0, 1e6), .fixed = true,
     .help = "Logits become cap * tanh(logit / cap); 0: as they are."},
    {.key = "model.init_std", .type = SETTING_F64, AT(model.init_std), RANGE(0, 10), .fixed = true,
     .help = "Initial standard deviation of projections; 0: 1/sqrt(inputs)."},
    {.key = "model.embed_std", .type = SETTING_F64, AT(model.embed_std), .initial = 1,
     RANGE(0, 100), .fixed = true, .help = "Initial standard deviation of embeddings."},
    {.key = "model.head_std", .type = SETTING_F64, AT(model.head_std), RANGE(0, 10), .fixed = true,
     .help = "Initial standard deviation of the head; 0: it starts at zero."},
    {.key = "model.zero_init_proj", .type = SETTING_BOOL, AT(model.zero_init_proj), .initial = 1,
     .fixed = true,
     .help = "Projections back into the residual stream start at zero; false: divided by "
             "sqrt(2 n_layer)."},

    // --- attention
    {.key = "attention.type", .type = SETTING_VARIANT, TEXT(attention.type), .initial_text = "mha",
     .fixed = true, .help = "Attention variant."},
    {.key = "attention.n_kv_head", .type = SETTING_INT, AT(attention.n_kv_head), RANGE(0, 1024),
     .fixed = true, .help = "gqa: key/value heads, a divisor of n_head; 0: not set."},
    {.key = "attention.rank", .type = SETTING_INT, AT(attention.rank), .initial = -1,
     RANGE(-1, 1024), .fixed = true, NEEDS("attention.type", "lrkv"),
     .help = "lrkv: rank of each head's key and value residual; 0 is mqa, -1: not set."},
    {.key = "attention.residual_init_ratio", .type = SETTING_F64,
     AT(attention.residual_init_ratio), .initial = 0.1, RANGE(0, 100), .fixed = true,
     NEEDS("attention.type", "lrkv"),
     .help = "lrkv: Frobenius norm of a residual over that of the shared matrix at the start."},
    {.key = "attention.path", .type = SETTING_WORD, AT(attention.path), .initial = PATH_FACTORED,
     .words = path_words, NEEDS("attention.type", "lrkv"),
     .help = "lrkv in training: multiply the factors for each token, or merge them once a step."},
    {.key = "attention.kv_lora_rank", .type = SETTING_INT, AT(attention.kv_lora_rank),
     RANGE(0, 65536), .fixed = true, NEEDS("attention.type", "mla"),
     .help = "mla: width of the cached latent; 0: not set."},
    {.key = "attention.q_lora_rank", .type = SETTING_INT, AT(attention.q_lora_rank),
     RANGE(0, 65536), .fixed = true, NEEDS("attention.type", "mla"),
     .help = "mla: width of the query latent; 0: full-rank queries."},
    {.key = "attention.qk_rope_head_dim", .type = SETTING_INT, AT(attention.qk_rope_head_dim),
     RANGE(0, 1024), .fixed = true, NEEDS("attention.type", "mla"),
     .help = "mla: width of the decoupled rotary key; 0: rotate the reconstructed key."},
    {.key = "attention.v_head_dim", .type = SETTING_INT, AT(attention.v_head_dim), RANGE(0, 1024),
     .fixed = true, NEEDS("attention.type", "mla"),
     .help = "mla: width of a value head; 0: head_dim."},

    // --- data
    {.key = "data.train", .type = SETTING_TEXT, TEXT(data.train), .initial_text = "",
     .help = "Training shards: file patterns separated by spaces. A run goes on only with the same "
             "shards, in any folder."},
    {.key = "data.val", .type = SETTING_TEXT, TEXT(data.val), .initial_text = "",
     .help = "Validation shards: file patterns separated by spaces."},
    {.key = "data.tokenizer", .type = SETTING_TEXT, TEXT(data.tokenizer), .initial_text = "",
     .help = "Tokenizer file, for samples and bits per byte. A run goes on only with the same "
             "one."},
    {.key = "data.shuffle", .type = SETTING_BOOL, AT(data.shuffle), .initial = 1, .fixed = true,
     .help = "Read samples in a random order that depends on train.seed; false: as stored."},

    // --- batch
    {.key = "batch.tokens", .type = SETTING_I64, AT(batch.tokens), .initial = 8192,
     RANGE(1, 1099511627776.0), .fixed = true,
     .help = "Tokens of one optimizer step, over all micro-batches and ranks."},
    {.key = "batch.micro_batch", .type = SETTING_INT, AT(batch.micro_batch), RANGE(0, 65536),
     .help = "Sequences that go through the model at once; 0: chosen."},

    // --- optim
    GROUP("embed", KIND_EMBED, OPTIM_ADAMW, 0.2, 0, "embeddings"),
    GROUP("head", KIND_HEAD, OPTIM_ADAMW, 0.004, 0.1, "the output head"),
    GROUP("matrix", KIND_MATRIX, OPTIM_MUON, 0.02, 0, "weight matrices"),
    GROUP("vector", KIND_VECTOR, OPTIM_ADAMW, 0.004, 0, "gains and biases"),
    {.key = "optim.muon_momentum", .type = SETTING_F64, AT(optim.muon_momentum), .initial = 0.95,
     RANGE(0, 1), .open = OPEN_MAX, .help = "Muon: momentum."},
    {.key = "optim.muon_nesterov", .type = SETTING_BOOL, AT(optim.muon_nesterov), .initial = 1,
     .help = "Muon: Nesterov momentum."},
    {.key = "optim.muon_steps", .type = SETTING_INT, AT(optim.muon_steps), .initial = 5,
     RANGE(1, 20), .help = "Muon: Newton-Schulz iterations."},
    {.key = "optim.muon_unit", .type = SETTING_WORD, AT(optim.muon_unit), .initial = MUON_MATRIX,
     .words = unit_words, .fixed = true,
     .help = "Muon: orthogonalise whole matrices, or each head's block by itself."},
    {.key = "optim.muon_compute", .type = SETTING_WORD, AT(optim.muon_compute),
     .initial = TYPE_F32, .words = elem_words,
     .help = "Muon: operand type of the Newton-Schulz products; sums and results are fp32."},
    {.key = "optim.master", .type = SETTING_WORD, AT(optim.master), .initial = MASTER_F32,
     .words = master_words,
     .help = "Where parameters are bf16 (--device cuda): keep an fp32 master of each, or none and "
             "round every update at random."},
    {.key = "optim.lr_width_scale", .type = SETTING_BOOL, AT(optim.lr_width_scale), .initial = 1,
     .help = "Multiply AdamW learning rates by (n_embd / 768)^-0.5."},
    {.key = "optim.grad_clip", .type = SETTING_F64, AT(optim.grad_clip), .initial = 1,
     RANGE(0, 1e6), .help = "Largest gradient norm over all tensors; 0: no limit."},

    // --- schedule
    {.key = "schedule.kind", .type = SETTING_WORD, AT(schedule.kind), .initial = SCHEDULE_COSINE,
     .words = schedule_words, .help = "Learning rate after the warm-up."},
    {.key = "schedule.warmup_steps", .type = SETTING_I64, AT(schedule.warmup_steps),
     .initial = 100, RANGE(0, COUNT_MAX), .help = "Steps of linear rise to the peak."},
    {.key = "schedule.decay_fraction", .type = SETTING_F64, AT(schedule.decay_fraction),
     .initial = 0.2, RANGE(0, 1), .open = OPEN_MIN, NEEDS("schedule.kind", "wsd"),
     .help = "wsd: share of the run, at its end, in which the rate falls."},
    {.key = "schedule.final_lr", .type = SETTING_F64, AT(schedule.final_lr), RANGE(0, 1),
     NEEDS("schedule.kind", "cosine|linear|wsd"),
     .help = "Learning rate at the end of the run as a fraction of the peak."},

    // --- train
    {.key = "train.steps", .type = SETTING_I64, AT(train.steps), .initial = 1000,
     RANGE(1, COUNT_MAX), .help = "Optimizer steps of the run."},
    {.key = "train.seed", .type = SETTING_I64, AT(train.seed), .initial = 1, RANGE(0, COUNT_MAX),
     .fixed = true, .help = "Decides initial weights and the order of the data."},
    {.key = "train.compute", .type = SETTING_WORD, AT(train.compute), .initial = TYPE_F32,
     .words = elem_words, .help = "Operand type of matrix products; sums are always fp32."},
    {.key = "train.threads", .type = SETTING_INT, AT(train.threads), RANGE(0, 1024),
     .help = "CPU threads; 0: one for each core. Results do not depend on it."},
    {.key = "train.deterministic", .type = SETTING_BOOL, AT(train.deterministic), .initial = 1,
     .help = "Fixed order of all sums. false: faster attention gradients on CUDA in bf16, whose "
             "last bits differ from run to run; the CPU has only the fixed order."},
    {.key = "train.eval_every", .type = SETTING_I64, AT(train.eval_every), .initial = 250,
     RANGE(0, COUNT_MAX), .help = "Steps between validation losses; 0: none."},
    {.key = "train.eval_tokens", .type = SETTING_I64, AT(train.eval_tokens), .initial = 65536,
     RANGE(1, COUNT_MAX), .help = "Tokens of one validation loss."},
    {.key = "train.sample_every", .type = SETTING_I64, AT(train.sample_every),
     RANGE(0, COUNT_MAX), .help = "Steps between samples of text; 0: none."},
    {.key = "train.sample_tokens", .type = SETTING_I64, AT(train.sample_tokens), .initial = 64,
     RANGE(1, 1048576), .help = "Tokens of one sample."},
    {.key = "train.sample_prompt", .type = SETTING_TEXT, TEXT(train.sample_prompt),
     .initial_text = "", .help = "How samples begin; empty: at the start of a document."},
    {.key = "train.max_skips", .type = SETTING_INT, AT(train.max_skips), .initial = 10,
     RANGE(1, 1000000), .help = "Non-finite steps in a row before rolling back."},
    {.key = "train.max_rollbacks", .type = SETTING_INT, AT(train.max_rollbacks), .initial = 3,
     RANGE(0, 1000000), .help = "Rollbacks to the last checkpoint before giving up."},

    // --- checkpoint
    {.key = "checkpoint.dir", .type = SETTING_TEXT, TEXT(checkpoint.dir),
     .initial_text = "runs/default", .help = "Run directory: checkpoints, metrics, tokenizer."},
    {.key = "checkpoint.every", .type = SETTING_I64, AT(checkpoint.every), .initial = 500,
     RANGE(0, COUNT_MAX), .help = "Steps between checkpoints; 0: only at the end."},
    {.key = "checkpoint.keep", .type = SETTING_INT, AT(checkpoint.keep), .initial = 2,
     RANGE(0, 1000000), .help = "Checkpoints that stay on disk; 0: all."},

    // --- log
    {.key = "log.every", .type = SETTING_I64, AT(log.every), .initial = 10, RANGE(1, COUNT_MAX),
     .help = "Steps between lines of progress."},

    // --- generate
    {.key = "generate.kv_type", .type = SETTING_WORD, AT(generate.kv_type), .initial = TYPE_FX,
     .words = kv_words, .help = "Element type of the key/value cache. auto: that of activations, "
             "bf16 on CUDA with train.compute=bf16, else fp32."},
};
// clang-format on

const int config_table_n = (int)(sizeof config_table / sizeof config_table[0]);
