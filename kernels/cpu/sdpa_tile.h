// sdpa_tile.h - what the attention kernels share: loading tiles of keys and values, and one block
// of query rows against one tile with an online softmax (Milakov and Gimelshein 2018; Dao et al.
// 2022).
//
// A tile is TILE_K keys, counted from position 0, so that the tiles a row meets, and with them its
// bits, follow from its own position alone. Keys lie transposed, (HS, TILE_K): scores and
// reconstructed keys both vectorise over positions.
//
// The right operand of a product over many rows is cut into panels of PANEL columns, one behind the
// other, each with contiguous rows: a panel then occupies every set of the first-level cache
// evenly. For few rows panel width TILE_K is better. Sums run in the same order either way.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

#define tile_transpose ISA_FN(tile_transpose)
#define tile_panels    ISA_FN(tile_panels)
#define tile_rows      ISA_FN(tile_rows)
#define tile_prefetch  ISA_FN(tile_prefetch)
#define rows_begin     ISA_FN(rows_begin)
#define rows_scores    ISA_FN(rows_scores)
#define rows_softmax   ISA_FN(rows_softmax)
#define rows_values    ISA_FN(rows_values)
#define rows_fold      ISA_FN(rows_fold)
#define rows_attend    ISA_FN(rows_attend)
#define rows_gather    ISA_FN(rows_gather)
#define rows_scatter   ISA_FN(rows_scatter)
#define rows_room      ISA_FN(rows_room)
#define rows_carve     ISA_FN(rows_carve)
#define state_room     ISA_FN(state_room)
#define state_carve    ISA_FN(state_carve)
#define scratch_floats ISA_FN(scratch_floats)

enum {
    TILE_K = LATENT_BLOCK,
    SPLIT_K = 4 * TILE_K,  // keys that extend sums together before it folds
};

// Width of a register tile of gemm_tile.
enum { PANEL = 2 * LANES };
// Panel width for that many query rows: with fewer the register kernels want all columns at once.
static inline int panel_for(int rows) {
    return rows < 5 ? TILE_K : (int)PANEL;
}

// dst (cols, TILE_K) in panels = transpose of src (rows, cols), rows ld apart, rows <= TILE_K. The
// columns from `rows` to the next multiple of LANES are zero, those behind it undefined, and
// nothing behind row `rows` is read. type: TYPE_F32 or TYPE_BF16.
void tile_transpose(float *dst, int panel, const void *src, ElemType type, size_t ld, int rows,
                    int cols);
// dst (rows, cols) in fp32 = src, in panels of PANEL columns with room for `height` rows; the
// columns that fill the last panel are undefined.
void tile_panels(float *dst, int height, const void *src, ElemType type, size_t ld, int rows,
                 int cols);
// dst (rows, cols) in fp32 = src, without panels.
void tile_rows(float *dst, const void *src, ElemType type, size_t ld, int rows, int cols);

// Brings src (rows, cols) towards the cache: rows lie too far apart for the hardware to foresee.
void tile_prefetch(const void *src, ElemType type, size_t ld, int rows, int cols);

// Query rows that walk over tiles together. Row r sees keys 0..limit[r]-1; limits never decrease.
// o, m, l hold the state of the softmax; scores is scratch.
typedef struct RowBlock {
    int n, HS;
    int width;         // of o: the head size of the values, or more where they come in parts
    int panel;         // width of the panels of kt
    const float *q;    // (n, HS)
    const int *limit;  // (n)
    float *o;          // (n, width) sum of p v
    float *m, *l;      // (n) largest scaled score so far; sum of p
    float *scores;     // (n, TILE_K)
} RowBlock;

// One tile for a block of rows.
typedef struct TileSpan {
    int first_key, n_keys;  // n_keys <= TILE_K exist
    int first_row;          // rows before it see nothing of the tile
} TileSpan;

// Sets the state to "no keys yet".
void rows_begin(const RowBlock *b);
// scores = q kt, for rows from first_row; kt in panels.
void rows_scores(const RowBlock *b, TileSpan t, const float *kt);
// scores = exp(scores * factor - m), 0 beyond a row's limit, with m, l and o brought up to date.
// factor (TILE_K): the scale of each key's score.
void rows_softmax(const RowBlock *b, TileSpan t, const float *factor);
// o[:, column...column+n) += scores v; v (n_keys, n) in PANEL panels when ld is 0, else rows ld
// apart. Values beyond a row's limit don't reach it, whatever they are.
void rows_values(const RowBlock *b, TileSpan t, const float *v, size_t ld, int column, int n);
// Takes the state of `part`, which saw later keys, into b. Same rows.
void rows_fold(const RowBlock *b, const RowBlock *part);

// Keys and values of one head of one row of the batch.
typedef struct KvHead {
    const void *k, *v;
    ElemType type;  // TYPE_F32 or TYPE_BF16
    size_t k_token, v_token;
    int HV;
    const float *factor;  // (TILE_K)
    float *kt;            // (HS, TILE_K) scratch
    float *v_tile;        // (TILE_K, HV) scratch in panels
} KvHead;

// Lets the rows see keys [first_key, end), first_key a multiple of TILE_K.
void rows_attend(const RowBlock *b, const KvHead *kv, int first_key, int end);

// The query rows of one key/value head: row i of them is token i / G of query head head*G + i % G,
// so that consecutive rows share their keys.
typedef struct QueryRows {
    const SdpaArgs *a;
    int b, head;  // row of the batch, key/value head
    int pos;      // position of token 0
    int first;    // of the rows that a block takes
} QueryRows;

static inline int group_size(const SdpaArgs *a) {
    return a->NH / a->NKV;
}
// Fills block->q, limit and panel for the first block->n rows.
void rows_gather(RowBlock *block, QueryRows r, const float *q);
// out = o / l (+ nothing else); lse (B, NH, Tq) = m + log l unless NULL.
void rows_scatter(const RowBlock *block, QueryRows r, float *out, float *lse);

// Uncleared memory in floats, 64-byte aligned pieces; die() when there is none. Freed with free().
float *scratch_floats(size_t n);
static inline float *scratch_take(float **next, size_t n) {
    float *p = *next;
    *next += (n + 15) / 16 * 16;
    return p;
}
// Room that rows_carve and state_carve take.
size_t rows_room(int rows, int HS, int width);
size_t state_room(int rows, int width);
// A block for up to `rows` rows.
RowBlock rows_carve(float **next, int rows, int HS, int width);
// A second state for the same rows: everything but o, m, l is shared.
RowBlock state_carve(float **next, const RowBlock *of, int rows);

// The span of keys [first_key, end), or fewer when end is near.
static inline TileSpan tile_span(const RowBlock *b, int first_key, int end) {
    TileSpan t = {.first_key = first_key};
    t.n_keys = end - first_key < TILE_K ? end - first_key : TILE_K;
    while (t.first_row < b->n && b->limit[t.first_row] <= first_key)
        t.first_row++;
    return t;
}
