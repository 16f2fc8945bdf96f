// evaluate.c - see evaluate.h.
#include "gpt/evaluate.h"

#include <math.h>
#include <string.h>

void eval_batch(Model *m, const Tokenizer *tok, const int *ids, const int *targets, EvalSum *sum) {
    size_t n = (size_t)m->B * (size_t)m->T;
    float *losses = mem_alloc(n, sizeof(float));
    model_losses(m, ids, targets, losses);
    for (size_t i = 0; i < n; i++) {
        if (targets[i] < 0) continue;
        if (!isfinite(losses[i])) {
            sum->bad++;
            continue;
        }
        sum->nats += (double)losses[i];
        sum->tokens++;
        if (!tok || tokenizer_is_special(tok, targets[i])) continue;
        size_t length;
        tokenizer_bytes(tok, targets[i], &length);
        sum->bytes += (int64_t)length;
        sum->text_nats += (double)losses[i];
    }
    mem_free(losses);
}

void eval_ids(Model *m, const Tokenizer *tok, const int *ids, size_t n, int64_t max_tokens,
              EvalSum *sum) {
    size_t B = (size_t)m->B, T = (size_t)m->T;
    size_t limit = max_tokens > 0 ? (size_t)max_tokens : SIZE_MAX;
    int *inputs = mem_alloc(B * T, sizeof(int)), *targets = mem_alloc(B * T, sizeof(int));
    for (size_t at = 0; at + 1 < n && at < limit; at += B * T) {
        for (size_t i = 0; i < B * T; i++) {
            bool scored = at + i + 1 < n && at + i < limit;
            inputs[i] = at + i < n ? ids[at + i] : ids[0];
            targets[i] = scored ? ids[at + i + 1] : -1;
        }
        eval_batch(m, tok, inputs, targets, sum);
    }
    mem_free(inputs);
    mem_free(targets);
}

bool eval_loader(Model *m, const Tokenizer *tok, DataLoader *data, int64_t max_tokens,
                 const volatile int *cancelled, EvalSum *sum, Error *err) {
    int64_t n = dataloader_info(data).n_samples, T = m->T;
    if (max_tokens > 0 && (max_tokens - 1) / T + 1 < n) n = (max_tokens - 1) / T + 1;
    size_t micro = (size_t)m->B * (size_t)T;
    int *ids = mem_alloc(micro, sizeof(int)), *targets = mem_alloc(micro, sizeof(int));
    bool ok = true;
    for (int64_t at = 0; ok && at < n && !(cancelled && *cancelled); at += m->B) {
        int rows = at + m->B <= n ? m->B : (int)(n - at);
        for (size_t i = 0; i < micro; i++)
            ids[i] = 0, targets[i] = -1;
        ok = dataloader_read(data, at, rows, ids, targets, err);
        // The last sample may reach beyond the tokens asked for.
        int64_t over = max_tokens > 0 ? (at + rows) * T - max_tokens : 0;
        for (int64_t i = 0; i < over; i++)
            targets[rows * T - 1 - i] = -1;
        if (ok) eval_batch(m, tok, ids, targets, sum);
    }
    mem_free(ids);
    mem_free(targets);
    return ok;
}

double eval_loss(const EvalSum *s) {
    return s->tokens ? s->nats / (double)s->tokens : (double)NAN;
}

double eval_bits_per_byte(const EvalSum *s) {
    if (s->bytes == 0) return (double)NAN;
    return s->text_nats / (0.69314718055994530942 * (double)s->bytes);
}
