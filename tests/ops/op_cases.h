/* The only table of operation cases, and for each operation its arrays and its call. Used to check gradients (finite
 * differences of the double reference) and to compare backends. */
#ifndef TESTS_OPS_OP_CASES_H
#define TESTS_OPS_OP_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backends/backends.h"
#include "base/rng.h"
#include "ops/attention.h"

enum op {
  LINEAR,
  EMBEDDING,
  NORM,
  ROPE,
  ACT,
  DROPOUT,
  ADD,
  CROSS_ENTROPY,
  ADAMW,
  ADAGRAD,
  SUMSQ,
  ATTENTION,
  SOFTCAP,
  SUMS
};

/* Flags. Each operation reads its own. */
enum {
  ACC = 1,      /* adds to outputs and input gradients */
  BIAS = 2,     /* linear: b; norm: shift; embedding: pos */
  LAYER = 4,    /* norm */
  WITH_ADD = 8, /* norm */
  ALIAS = 16,   /* the aliasing allowed in the header */
  TABLE = 32,   /* rope */
  GELU = 64,    /* act; without either: ReLU */
  SWIGLU = 128,
  RELU2 = 8, /* act */
  SEL = 256, /* from here on: attention */
  NO_RELU = 512,
  OPEN_FIRST = 1024,
  OPEN_SELF = 2048,
  NO_SHIFT = 4096,
  BILINEAR = 8192,
  MEM = 16384,
  DOCS = 32768,
  LAST_HEAD = 65536,    /* the last head is the selecting one */
  HEADS_FIRST = 131072, /* [B,H,T,D] instead of [B,T,H,D] */
  ADJACENT = 262144,    /* rope: pairs (2i, 2i+1) */
  ERF = 1048576,        /* act: GELU by the error function */
  GEGLU = 2097152,      /* act */
  CAPPED = 4194304,     /* cross_entropy: logits are soft-capped; dlogits is of the uncapped ones */
  MASKED = 8388608,     /* attention sums: some columns are hidden, in one row all */
  FACTORS = 16777216,   /* attention sums: spans */
  SCALED = 524288       /* rope: given frequencies, a magnitude, 2 elements unrotated; embedding: a factor */
};

struct op_case {
  enum op op;
  int64_t n[6]; /* sizes, in the order given above the operation's cases */
  unsigned flags;
};

static const struct op_case op_cases[] = {
    /* M, N, K, padding after every row */
    {LINEAR, {1, 1, 1, 0}, 0},
    {LINEAR, {3, 17, 5, 2}, BIAS},
    {LINEAR, {17, 3, 63, 1}, BIAS | ACC},
    {LINEAR, {65, 64, 31, 3}, ACC},
    {LINEAR, {64, 127, 64, 0}, BIAS},
    {LINEAR, {37, 101, 131, 7}, BIAS | ACC},
    {LINEAR, {1, 257, 129, 0}, 0},
    /* M, C, V, P */
    {EMBEDDING, {1, 1, 1, 1}, BIAS},
    {EMBEDDING, {23, 17, 5, 7}, BIAS},
    {EMBEDDING, {67, 65, 101, 0}, 0},
    {EMBEDDING, {40, 64, 3, 50}, BIAS},
    /* rows, groups, width, padding */
    {NORM, {1, 1, 1, 0}, 0},
    {NORM, {3, 1, 17, 2}, LAYER | BIAS},
    {NORM, {7, 3, 16, 5}, ACC},
    {NORM, {5, 1, 65, 0}, WITH_ADD},
    {NORM, {5, 1, 63, 3}, WITH_ADD | LAYER | BIAS | ACC},
    {NORM, {9, 2, 31, 0}, ALIAS},
    {NORM, {4, 1, 257, 0}, LAYER | ALIAS},
    {NORM, {33, 1, 64, 1}, WITH_ADD | ACC},
    {NORM, {6, 5, 127, 0}, LAYER | BIAS},
    /* rows, heads, D, padding */
    {ROPE, {1, 1, 2, 0}, 0},
    {ROPE, {5, 3, 14, 3}, TABLE},
    {ROPE, {17, 2, 64, 0}, TABLE},
    {ROPE, {7, 1, 34, 1}, 0},
    {ROPE, {9, 5, 128, 5}, TABLE},
    {ROPE, {5, 3, 14, 3}, ADJACENT},
    {ROPE, {17, 2, 64, 0}, TABLE | ADJACENT},
    {ROPE, {4, 3, 36, 1}, TABLE | ADJACENT | SCALED},
    {ROPE, {4, 3, 36, 1}, SCALED},
    /* M, F */
    {ACT, {1, 1}, SWIGLU},
    {ACT, {5, 17}, SWIGLU},
    {ACT, {3, 65}, SWIGLU | ALIAS},
    {ACT, {17, 63}, GELU},
    {ACT, {7, 64}, GELU | ALIAS},
    {ACT, {5, 31}, 0},
    {ACT, {31, 67}, ALIAS},
    /* n */
    {DROPOUT, {1}, 0},
    {DROPOUT, {67}, 0},
    {DROPOUT, {1031}, 0},
    {ADD, {1}, 0},
    {ADD, {65}, ALIAS},
    {ADD, {1027}, 0},
    /* M, V, padding */
    {CROSS_ENTROPY, {1, 1, 0}, 0},
    {CROSS_ENTROPY, {3, 17, 1}, 0},
    {CROSS_ENTROPY, {17, 63, 0}, ALIAS},
    {CROSS_ENTROPY, {9, 1031, 5}, 0},
    {CROSS_ENTROPY, {33, 257, 0}, ALIAS},
    /* n */
    {ADAMW, {1}, 0},
    {ADAMW, {67}, 0},
    {ADAMW, {1031}, 0},
    {ADAGRAD, {1}, 0},
    {ADAGRAD, {65}, 0},
    {ADAGRAD, {1025}, 0},
    {SUMSQ, {1}, 0},
    {SUMSQ, {63}, 0},
    {SUMSQ, {4099}, 0},
    /* B, T, H, Hkv, D, padding */
    {ATTENTION, {1, 1, 1, 1, 8, 0}, 0},
    {ATTENTION, {2, 7, 4, 2, 5, 3}, 0},
    {ATTENTION, {2, 9, 2, 2, 8, 0}, DOCS},
    {ATTENTION, {1, 65, 3, 1, 17, 0}, HEADS_FIRST},
    {ATTENTION, {2, 130, 2, 2, 64, 8}, 0},
    {ATTENTION, {1, 64, 6, 2, 32, 0}, DOCS | HEADS_FIRST},
    {ATTENTION, {1, 1, 2, 1, 8, 0}, SEL | MEM},
    {ATTENTION, {2, 2, 2, 2, 8, 0}, SEL},
    {ATTENTION, {2, 9, 4, 2, 8, 3}, SEL},
    {ATTENTION, {1, 9, 2, 2, 8, 0}, SEL | NO_RELU},
    {ATTENTION, {1, 9, 2, 1, 8, 0}, SEL | OPEN_FIRST},
    {ATTENTION, {1, 9, 2, 2, 8, 0}, SEL | OPEN_SELF | HEADS_FIRST},
    {ATTENTION, {1, 9, 2, 2, 8, 0}, SEL | NO_SHIFT},
    {ATTENTION, {2, 9, 4, 2, 8, 0}, SEL | NO_SHIFT | OPEN_SELF | OPEN_FIRST | LAST_HEAD},
    {ATTENTION, {2, 9, 2, 2, 8, 1}, SEL | BILINEAR},
    {ATTENTION, {2, 11, 3, 3, 8, 0}, SEL | MEM},
    {ATTENTION, {2, 13, 4, 2, 6, 0}, SEL | MEM | DOCS | BILINEAR | NO_SHIFT},
    {ATTENTION, {2, 13, 4, 2, 6, 0}, SEL | MEM | DOCS | LAST_HEAD | OPEN_SELF},
    {ATTENTION, {1, 63, 4, 4, 16, 0}, SEL},
    {ATTENTION, {2, 64, 4, 2, 64, 0}, SEL | MEM | HEADS_FIRST},
    {ATTENTION, {1, 65, 6, 3, 33, 5}, SEL | MEM | LAST_HEAD},
    {ATTENTION, {1, 131, 2, 1, 80, 0}, SEL | BILINEAR},
    {ATTENTION, {2, 129, 4, 4, 32, 0}, SEL | DOCS | MEM},
    {ATTENTION, {1, 257, 4, 2, 64, 0}, SEL},
    {ATTENTION, {1, 100, 2, 2, 128, 0}, SEL | NO_RELU | NO_SHIFT},
    {ATTENTION, {1, 100, 2, 2, 24, 0}, SEL | OPEN_FIRST | OPEN_SELF | DOCS},
    {ACT, {17, 63}, ERF},
    {ACT, {7, 64}, ERF | ALIAS},
    {ACT, {5, 31}, RELU2},
    {ACT, {31, 67}, RELU2 | ALIAS},
    {ACT, {1, 1}, GEGLU},
    {ACT, {5, 17}, GEGLU},
    {ACT, {3, 65}, GEGLU | ALIAS},
    {EMBEDDING, {23, 17, 5, 7}, BIAS | SCALED},
    {EMBEDDING, {67, 65, 101, 0}, SCALED},
    {SOFTCAP, {1}, 0},
    {SOFTCAP, {67}, 0},
    {SOFTCAP, {1031}, 0},
    {CROSS_ENTROPY, {3, 17, 1}, CAPPED},
    {CROSS_ENTROPY, {17, 63, 0}, ALIAS | CAPPED},
    {CROSS_ENTROPY, {9, 1031, 5}, CAPPED},
    {CROSS_ENTROPY, {33, 257, 0}, ALIAS | CAPPED},
    /* R, N, S, share, padding */
    {SUMS, {1, 1, 0, 1, 0}, 0},
    {SUMS, {1, 2, 3, 1, 0}, 0},
    {SUMS, {4, 17, 0, 2, 3}, 0},
    {SUMS, {6, 31, 2, 3, 0}, WITH_ADD},
    {SUMS, {4, 64, 0, 4, 5}, MASKED},
    {SUMS, {3, 129, 1, 1, 0}, MASKED | WITH_ADD | FACTORS},
    {SUMS, {4, 95, 0, 1, 2}, MASKED},
    {SUMS, {8, 257, 4, 2, 1}, MASKED | FACTORS},
    {SUMS, {2, 1031, 0, 2, 0}, WITH_ADD | FACTORS},
    /* sizes that operations process by eights */
    {LINEAR, {37, 104, 136, 8}, ACC},
    {NORM, {40, 3, 64, 8}, 0},
    {NORM, {6, 4, 120, 8}, LAYER | BIAS | ACC},
    {NORM, {70, 1, 256, 8}, WITH_ADD | ACC},
    {NORM, {9, 1, 328, 0}, LAYER | BIAS},
    {NORM, {5, 1, 768, 0}, ALIAS},
    {NORM, {5, 1, 776, 16}, WITH_ADD | LAYER | BIAS},
    {ACT, {9, 48}, SWIGLU},
    {ACT, {7, 40}, GEGLU | ALIAS},
    {ACT, {5, 72}, 0},
    {ACT, {5, 72}, RELU2},
    {CROSS_ENTROPY, {9, 264, 8}, 0},
    {NORM, {5, 1, 904, 0}, ACC},
};
#define OP_CASE_COUNT ((int)(sizeof op_cases / sizeof *op_cases))

enum role {
  INPUT, /* differentiated; a GRAD array links to it */
  CONST,
  STATE, /* read and written */
  OUT,   /* link: the array that holds the loss' gradient by it, or -1 */
  GRAD   /* link: the input */
};

struct array {
  const char *name;
  enum role role;
  int64_t rows, width, ld;
  int link;
  bool adds;            /* OUT, GRAD: the call adds to it */
  bool wide;            /* double for every dtype */
  bool mixes;           /* may be bf16 where others are float */
  bool bf16;            /* is bf16 */
  double offset, scale; /* values: offset + scale * number of mean 0 and variance 1 */
  bool positive;
  void *data; /* no padding after the last row, so that an overrun is detected */
};

#define ARRAYS_MAX 24
struct bench {
  const struct op_case *c;
  wn_dtype dtype, precision;
  struct array a[ARRAYS_MAX];
  int count;
  int32_t *ids, *positions; /* also targets and doc_start */
  float *table;
  double *frequencies; /* [64] */
};

static int64_t elements(const struct array *a) {
  return a->rows ? (a->rows - 1) * a->ld + a->width : 0;
}

static double array_get(const struct bench *b, int which, int64_t i) {
  const struct array *a = &b->a[which];
  if (a->bf16) return (double)wn_bf16_value(((uint16_t *)a->data)[i]);
  return a->wide || b->dtype == WN_F64 ? ((double *)a->data)[i] : (double)((float *)a->data)[i];
}

static void array_set(struct bench *b, int which, int64_t i, double v) {
  struct array *a = &b->a[which];
  if (a->bf16)
    ((uint16_t *)a->data)[i] = wn_bf16_round((float)v);
  else if (a->wide || b->dtype == WN_F64)
    ((double *)a->data)[i] = v;
  else
    ((float *)a->data)[i] = (float)v;
}

static int array_add(struct bench *b, const char *name, enum role role, int64_t rows, int64_t width, int64_t pad,
                     int link) {
  b->a[b->count] = (struct array){
      .name = name, .role = role, .rows = rows, .width = width, .ld = width + pad, .link = link, .scale = 1};
  return b->count++;
}

/* ---- for each operation its arrays and its call; array indices have names ---- */

#define WN_TEST_RUNNER(name, args, has_backward)                                                                       \
  static inline wn_status run_##name(struct wn_exec e, const args *a, bool backward) {                                 \
    e.scratch_bytes = wn_op_##name##_scratch(&e, a, backward);                                                         \
    const size_t room = (e.scratch_bytes + 63) / 64 * 64;                                                              \
    e.scratch = room ? aligned_alloc(64, room) : NULL;                                                                 \
    if (room) memset(e.scratch, 0xff, room); /* NaN: scratch is not initialised */                                     \
    const wn_status status = backward ? wn_op_##name##_backward(&e, a) : wn_op_##name##_forward(&e, a);                \
    free(e.scratch);                                                                                                   \
    return status;                                                                                                     \
  }
WN_OPS(WN_TEST_RUNNER)

#define AT(i) (b->a[i].data)
#define LD(i) (b->a[i].ld)
#define TYPE(i) (b->a[i].bf16 ? WN_BF16 : WN_F32)
static bool has(const struct bench *b, unsigned flag) {
  return (b->c->flags & flag) != 0;
}
static void copy(struct bench *b, int to, int from) {
  const wn_dtype dtype = b->a[to].bf16 ? WN_BF16 : b->dtype;
  if (elements(&b->a[to])) memcpy(AT(to), AT(from), (size_t)elements(&b->a[to]) * wn_dtype_size(dtype));
}
static int32_t *new_ids(struct bench *b, int64_t n, int64_t low, int64_t high, uint64_t salt) {
  int32_t *ids = malloc((size_t)(n ? n : 1) * sizeof *ids);
  for (int64_t i = 0; i < n; i++)
    ids[i] = (int32_t)(low + (int64_t)wn_random_below((uint64_t)(b->c - op_cases), WN_STREAM_TEST, 1000 + salt,
                                                      (uint64_t)i, (uint64_t)(high - low)));
  return ids;
}

enum { L_X, L_W, L_Y, L_DY, L_DX, L_DW, L_B, L_DB };
static void declare_linear(struct bench *b) {
  const int64_t M = b->c->n[0], N = b->c->n[1], K = b->c->n[2], pad = b->c->n[3];
  array_add(b, "x", INPUT, M, K, pad, -1);
  array_add(b, "w", INPUT, N, K, 0, -1);
  array_add(b, "y", OUT, M, N, pad, L_DY);
  array_add(b, "dy", CONST, M, N, pad, -1);
  array_add(b, "dx", GRAD, M, K, pad, L_X);
  array_add(b, "dw", GRAD, N, K, 0, L_W);
  if (has(b, BIAS)) {
    array_add(b, "b", INPUT, 1, N, 0, -1);
    array_add(b, "db", GRAD, 1, N, 0, L_B);
    b->a[L_DB].adds = true;
  }
  b->a[L_DW].adds = true;
  b->a[L_Y].adds = b->a[L_DX].adds = has(b, ACC);
  b->a[L_X].mixes = b->a[L_DY].mixes = true;
  b->a[L_Y].mixes = b->a[L_DX].mixes = !has(b, ACC);
}
static wn_status call_linear(struct bench *b, struct wn_exec e, bool backward) {
  struct wn_linear a = {.M = b->c->n[0], .N = b->c->n[1], .K = b->c->n[2], .x = AT(L_X), .ldx = LD(L_X), .w = AT(L_W)};
  a.x_type = TYPE(L_X), a.y_type = TYPE(L_Y), a.dy_type = TYPE(L_DY), a.dx_type = TYPE(L_DX);
  e.precision = b->precision;
  a.y = AT(L_Y), a.ldy = LD(L_Y), a.accumulate = a.accumulate_dx = has(b, ACC);
  a.dy = AT(L_DY), a.lddy = LD(L_DY), a.dx = AT(L_DX), a.lddx = LD(L_DX), a.dw = AT(L_DW);
  if (has(b, BIAS)) a.b = AT(L_B), a.db = AT(L_DB);
  return run_linear(e, &a, backward);
}

enum { E_TOK, E_Y, E_DY, E_DTOK, E_POS, E_DPOS };
static void declare_embedding(struct bench *b) {
  const int64_t M = b->c->n[0], C = b->c->n[1], V = b->c->n[2], P = b->c->n[3];
  array_add(b, "tok", INPUT, V, C, 0, -1);
  array_add(b, "y", OUT, M, C, 0, E_DY);
  array_add(b, "dy", CONST, M, C, 0, -1);
  array_add(b, "dtok", GRAD, V, C, 0, E_TOK);
  b->a[E_DTOK].adds = true;
  b->ids = new_ids(b, M, 0, V, 0);
  if (!has(b, BIAS)) return;
  array_add(b, "pos", INPUT, P, C, 0, -1);
  array_add(b, "dpos", GRAD, P, C, 0, E_POS);
  b->a[E_DPOS].adds = true;
  b->positions = new_ids(b, M, 0, P, 1);
}
static wn_status call_embedding(struct bench *b, struct wn_exec e, bool backward) {
  struct wn_embedding a = {.M = b->c->n[0], .C = b->c->n[1], .V = b->c->n[2], .P = b->c->n[3], .ids = b->ids};
  if (has(b, SCALED)) a.scale = 5.65685424949238; /* the square root of a width */
  a.tok = AT(E_TOK), a.y = AT(E_Y), a.dy = AT(E_DY), a.dtok = AT(E_DTOK);
  if (has(b, BIAS)) a.positions = b->positions, a.pos = AT(E_POS), a.dpos = AT(E_DPOS);
  return run_embedding(e, &a, backward);
}

enum { N_X, N_GAIN, N_Y, N_DY, N_DX, N_DGAIN, N_RSTD, N_MEAN, N_SHIFT, N_DSHIFT, N_ADD, N_SUM };
static void declare_norm(struct bench *b) {
  const int64_t R = b->c->n[0], G = b->c->n[1], W = b->c->n[2], pad = b->c->n[3];
  array_add(b, "x", INPUT, R, G * W, pad, -1);
  array_add(b, "gain", INPUT, 1, W, 0, -1);
  array_add(b, "y", OUT, R, G * W, pad, N_DY);
  array_add(b, "dy", CONST, R, G * W, pad, -1);
  array_add(b, "dx", GRAD, R, G * W, pad, N_X);
  array_add(b, "dgain", GRAD, 1, W, 0, N_GAIN);
  array_add(b, "rstd", OUT, R, G, 0, -1);
  array_add(b, "mean", OUT, R, G, 0, -1);
  array_add(b, "shift", INPUT, 1, W, 0, -1);
  array_add(b, "dshift", GRAD, 1, W, 0, N_SHIFT);
  array_add(b, "add", CONST, R, G * W, pad, -1);
  array_add(b, "sum", OUT, R, G * W, pad, -1);
  b->a[N_X].offset = 0.5; /* a mean that is not near zero, for LayerNorm */
  b->a[N_DX].adds = has(b, ACC);
  b->a[N_X].mixes = !has(b, WITH_ADD);
  b->a[N_Y].mixes = b->a[N_DY].mixes = true;
  b->a[N_DX].mixes = !has(b, ACC);
  b->a[N_DGAIN].adds = b->a[N_DSHIFT].adds = true;
}
static wn_status call_norm(struct bench *b, struct wn_exec e, bool backward) {
  struct wn_norm a = {
      .rows = b->c->n[0], .groups = b->c->n[1], .width = b->c->n[2], .layer = has(b, LAYER), .eps = 1e-5};
  a.x = AT(N_X), a.ldx = LD(N_X), a.gain = AT(N_GAIN), a.y = AT(N_Y), a.ldy = LD(N_Y), a.rstd = AT(N_RSTD);
  a.dy = AT(N_DY), a.lddy = LD(N_DY), a.dx = AT(N_DX), a.lddx = LD(N_DX), a.dgain = AT(N_DGAIN);
  a.accumulate_dx = has(b, ACC);
  a.x_type = TYPE(N_X), a.y_type = TYPE(N_Y), a.dy_type = TYPE(N_DY), a.dx_type = TYPE(N_DX);
  if (has(b, LAYER)) a.mean = AT(N_MEAN);
  if (has(b, BIAS)) a.shift = AT(N_SHIFT), a.dshift = AT(N_DSHIFT);
  if (has(b, WITH_ADD)) a.add = AT(N_ADD), a.ldadd = LD(N_ADD), a.sum = AT(N_SUM), a.ldsum = LD(N_SUM);
  if (backward && has(b, ALIAS)) copy(b, N_DX, N_DY), a.dy = a.dx;
  return run_norm(e, &a, backward);
}

/* In place: first x is copied to y, and dy to dx. */
enum { I_X, I_Y, I_DY, I_DX };
static void declare_in_place(struct bench *b, int64_t rows, int64_t width, int64_t pad) {
  array_add(b, "x", INPUT, rows, width, pad, -1);
  array_add(b, "y", OUT, rows, width, pad, I_DY);
  array_add(b, "dy", CONST, rows, width, pad, -1);
  array_add(b, "dx", GRAD, rows, width, pad, I_X);
  for (int i = I_X; i <= I_DX; i++) b->a[i].mixes = true;
}
static void declare_rope(struct bench *b) {
  const int64_t P = 301;
  declare_in_place(b, b->c->n[0], b->c->n[1] * b->c->n[2], b->c->n[3]);
  b->positions = new_ids(b, b->c->n[0], 0, P, 0);
  b->table = malloc((size_t)(P * b->c->n[2]) * sizeof *b->table);
  b->frequencies = malloc(64 * sizeof *b->frequencies);
  for (int i = 0; i < 64; i++) b->frequencies[i] = pow(0.8, i) / (1 + i % 3);
  if (has(b, SCALED))
    wn_rope_table_frequencies(b->table, P, b->c->n[2] / 2 - 1, b->frequencies, 1.25);
  else
    wn_rope_table(b->table, P, b->c->n[2], 10000);
}
static wn_status call_rope(struct bench *b, struct wn_exec e, bool backward) {
  copy(b, backward ? I_DX : I_Y, backward ? I_DY : I_X);
  struct wn_rope a = {.rows = b->c->n[0], .heads = b->c->n[1], .D = b->c->n[2], .theta = 10000};
  a.type = TYPE(I_X);
  a.x = AT(backward ? I_DX : I_Y), a.ldx = LD(I_X), a.positions = b->positions;
  a.adjacent = has(b, ADJACENT);
  if (has(b, SCALED)) a.R = a.D - 2, a.frequencies = b->frequencies, a.magnitude = 1.25;
  /* The double reference uses the float table too, so that only the rotation is compared. */
  if (has(b, TABLE)) a.cos_sin = b->table, a.P = 301;
  return run_rope(e, &a, backward);
}
static void declare_dropout(struct bench *b) {
  declare_in_place(b, 1, b->c->n[0], 0);
}
static wn_status call_dropout(struct bench *b, struct wn_exec e, bool backward) {
  copy(b, backward ? I_DX : I_Y, backward ? I_DY : I_X);
  struct wn_dropout a = {.n = b->c->n[0], .p = 0.3, .seed = 7, .stream = 11, .x = AT(backward ? I_DX : I_Y)};
  a.type = TYPE(I_X);
  return run_dropout(e, &a, false);
}

static void declare_act(struct bench *b) {
  const int64_t M = b->c->n[0], F = b->c->n[1], in = has(b, SWIGLU | GEGLU) ? 2 * F : F;
  array_add(b, "x", INPUT, M, in, 0, -1);
  array_add(b, "y", OUT, M, F, 0, I_DY);
  array_add(b, "dy", CONST, M, F, 0, -1);
  array_add(b, "dx", GRAD, M, in, 0, I_X);
  b->a[I_X].scale = 3; /* reaches the function's tails */
  for (int i = I_X; i <= I_DX; i++) b->a[i].mixes = true;
}
static wn_status call_act(struct bench *b, struct wn_exec e, bool backward) {
  struct wn_act a = {.kind = has(b, SWIGLU)  ? WN_ACT_SWIGLU
                             : has(b, GELU)  ? WN_ACT_GELU
                             : has(b, ERF)   ? WN_ACT_GELU_ERF
                             : has(b, GEGLU) ? WN_ACT_GEGLU
                             : has(b, RELU2) ? WN_ACT_RELU2
                                             : WN_ACT_RELU};
  a.type = TYPE(I_X);
  a.M = b->c->n[0], a.F = b->c->n[1], a.x = AT(I_X), a.y = AT(I_Y), a.dy = AT(I_DY), a.dx = AT(I_DX);
  if (backward && has(b, ALIAS)) copy(b, I_DX, I_X), a.x = a.dx;
  return run_act(e, &a, backward);
}

enum { A_X, A_Z, A_Y };
static void declare_add(struct bench *b) {
  array_add(b, "x", CONST, 1, b->c->n[0], 0, -1);
  array_add(b, "z", CONST, 1, b->c->n[0], 0, -1);
  array_add(b, "y", OUT, 1, b->c->n[0], 0, -1);
}
static wn_status call_add(struct bench *b, struct wn_exec e, bool backward) {
  if (backward) return WN_OK;
  struct wn_add a = {.n = b->c->n[0], .x = AT(A_X), .z = AT(A_Z), .y = AT(A_Y)};
  if (has(b, ALIAS)) copy(b, A_Y, A_X), a.x = a.y;
  return run_add(e, &a, false);
}

static wn_status call_softcap(struct bench *b, struct wn_exec e, bool backward) {
  copy(b, backward ? I_DX : I_Y, backward ? I_DY : I_X);
  return run_softcap(e, &(struct wn_softcap){.n = b->c->n[0], .cap = 1.5, .x = AT(backward ? I_DX : I_Y)}, false);
}

enum { C_LOGITS, C_LOSS, C_SCALE, C_DLOGITS, C_HIT, C_CAPPED };
#define CE_CAP 3.0
#define CE_SCALE 0.37
static void declare_cross_entropy(struct bench *b) {
  const int64_t M = b->c->n[0], V = b->c->n[1], pad = b->c->n[2];
  array_add(b, "logits", INPUT, M, V, pad, -1);
  array_add(b, "loss", OUT, 1, M, 0, C_SCALE);
  array_add(b, "scale", CONST, 1, M, 0, -1);
  array_add(b, "dlogits", GRAD, M, V, pad, C_LOGITS);
  array_add(b, "hit", OUT, 1, M, 0, -1); /* filled from the bytes */
  if (has(b, CAPPED)) array_add(b, "capped", OUT, M, V, pad, -1);
  b->a[C_LOSS].wide = true;
  b->a[C_SCALE].scale = 0, b->a[C_SCALE].offset = CE_SCALE;
  b->a[C_LOGITS].scale = 4;
  b->ids = new_ids(b, M, -1, V, 0);
}
static wn_status call_cross_entropy(struct bench *b, struct wn_exec e, bool backward) {
  if (backward) return WN_OK;
  const int64_t M = b->c->n[0];
  uint8_t *hit = malloc((size_t)M);
  struct wn_cross_entropy a = {.M = M, .V = b->c->n[1], .ld = LD(C_LOGITS), .logits = AT(C_LOGITS), .targets = b->ids};
  a.scale = CE_SCALE, a.dlogits = AT(C_DLOGITS), a.loss = AT(C_LOSS), a.hit = hit;
  if (has(b, CAPPED)) {
    copy(b, C_CAPPED, C_LOGITS);
    for (int64_t m = 0; m < M; m++) {
      struct wn_softcap cap = {.n = a.V, .cap = CE_CAP, .x = wn_element(AT(C_CAPPED), m * a.ld, b->dtype)};
      const wn_status capped = run_softcap(e, &cap, false);
      if (capped != WN_OK) return capped;
    }
    a.cap = CE_CAP, a.logits = AT(C_CAPPED);
  }
  if (has(b, ALIAS)) copy(b, C_DLOGITS, has(b, CAPPED) ? C_CAPPED : C_LOGITS), a.logits = a.dlogits;
  const wn_status status = run_cross_entropy(e, &a, false);
  for (int64_t m = 0; m < M; m++) array_set(b, C_HIT, m, hit[m]);
  free(hit);
  return status;
}

enum { U_LOGITS, U_ADD, U_SINK, U_SUMS, U_EXTRA, U_FACTOR };
static void declare_sums(struct bench *b) {
  const int64_t R = b->c->n[0], N = b->c->n[1], S = b->c->n[2], share = b->c->n[3], pad = b->c->n[4];
  array_add(b, "logits", CONST, R, N, pad, -1);
  array_add(b, "add", CONST, R / share, N, 0, -1);
  array_add(b, "sink", CONST, S ? R : 0, S, pad, -1);
  array_add(b, "sums", OUT, 1, N, 0, -1);
  array_add(b, "extra", CONST, R, N, 0, -1);
  array_add(b, "factor", CONST, R, N, 0, -1);
  b->a[U_LOGITS].scale = 6;
  b->a[U_SUMS].adds = b->a[U_FACTOR].positive = true;
  b->a[U_FACTOR].scale = 0.5;
}
static wn_status call_sums(struct bench *b, struct wn_exec e, bool backward) {
  if (backward) return WN_OK;
  const int64_t R = b->c->n[0], N = b->c->n[1];
  if (has(b, MASKED)) { /* `add` hides everything in the first rows, every third column in others */
    for (int64_t c = 0; c < N; c++) array_set(b, U_ADD, c, -INFINITY);
    for (int64_t i = N; i < R / b->c->n[3] * N; i++)
      if (i % 3 == 0) array_set(b, U_ADD, i, -INFINITY);
  }
  const struct wn_attention_sums a = {.R = R,
                                      .N = N,
                                      .S = b->c->n[2],
                                      .scale = 0.7,
                                      .logits = AT(U_LOGITS),
                                      .ld = LD(U_LOGITS),
                                      .share = b->c->n[3],
                                      .add = AT(U_ADD),
                                      .extra = has(b, WITH_ADD) ? AT(U_EXTRA) : NULL,
                                      .factor = has(b, FACTORS) ? AT(U_FACTOR) : NULL,
                                      .sink = AT(U_SINK),
                                      .ld_sink = LD(U_SINK),
                                      .sums = AT(U_SUMS)};
  return run_attention_sums(e, &a, false);
}

enum { O_P, O_G, O_V, O_M };
static void declare_optimizer(struct bench *b) {
  array_add(b, "p", STATE, 1, b->c->n[0], 0, -1);
  array_add(b, "g", CONST, 1, b->c->n[0], 0, -1);
  array_add(b, "v", STATE, 1, b->c->n[0], 0, -1);
  b->a[O_V].positive = true;
  if (b->c->op == ADAMW) array_add(b, "m", STATE, 1, b->c->n[0], 0, -1);
}
static wn_status call_adamw(struct bench *b, struct wn_exec e, bool backward) {
  if (backward) return WN_OK;
  struct wn_adamw a = {.n = b->c->n[0], .p = AT(O_P), .g = AT(O_G), .m = AT(O_M), .v = AT(O_V), .lr = 0.01};
  a.beta1 = 0.9, a.beta2 = 0.999, a.eps = 1e-8, a.weight_decay = 0.1, a.grad_scale = 0.25, a.step = 5;
  return run_adamw(e, &a, false);
}
static wn_status call_adagrad(struct bench *b, struct wn_exec e, bool backward) {
  if (backward) return WN_OK;
  struct wn_adagrad a = {.n = b->c->n[0], .p = AT(O_P), .g = AT(O_G), .v = AT(O_V), .lr = 0.07, .eps = 1e-8};
  a.weight_decay = 0.01, a.grad_scale = 0.5;
  return run_adagrad(e, &a, false);
}

static void declare_sumsq(struct bench *b) {
  array_add(b, "x", CONST, 1, b->c->n[0], 0, -1);
  array_add(b, "out", OUT, 1, 1, 0, -1);
  b->a[1].wide = true;
}
static wn_status call_sumsq(struct bench *b, struct wn_exec e, bool backward) {
  if (backward) return WN_OK;
  struct wn_sumsq a = {.n = b->c->n[0], .x = AT(0), .out = AT(1)};
  return run_sumsq(e, &a, false);
}

enum { T_Q, T_K, T_V, T_Y, T_LSE, T_DY, T_DQ, T_DK, T_DV, T_F, T_FOUT, T_M, T_DM, T_SQ, T_SK, T_DSQ, T_DSK };
static void add_heads(struct bench *b, const char *name, enum role role, int64_t heads, int link) {
  const int64_t B = b->c->n[0], T = b->c->n[1], D = b->c->n[4], pad = b->c->n[5];
  if (has(b, HEADS_FIRST))
    array_add(b, name, role, B * heads * T, D, 0, link);
  else
    array_add(b, name, role, B * T, heads * D, pad, link);
}
static struct wn_stride heads_stride(const struct bench *b, int which, int64_t heads) {
  const int64_t T = b->c->n[1], D = b->c->n[4], ld = b->a[which].ld;
  return has(b, HEADS_FIRST) ? (struct wn_stride){.b = heads * T * D, .t = D, .h = T * D}
                             : (struct wn_stride){.b = T * ld, .t = ld, .h = D};
}
static void declare_attention(struct bench *b) {
  const int64_t B = b->c->n[0], T = b->c->n[1], H = b->c->n[2], Hkv = b->c->n[3], D = b->c->n[4];
  add_heads(b, "q", INPUT, H, -1);
  add_heads(b, "k", INPUT, Hkv, -1);
  add_heads(b, "v", INPUT, Hkv, -1);
  add_heads(b, "y", OUT, H, T_DY);
  array_add(b, "lse", OUT, B * H, T, 0, -1);
  add_heads(b, "dy", CONST, H, -1);
  add_heads(b, "dq", GRAD, H, T_Q);
  add_heads(b, "dk", GRAD, Hkv, T_K);
  add_heads(b, "dv", GRAD, Hkv, T_V);
  b->a[T_Q].scale = b->a[T_K].scale = 1.3;
  if (has(b, DOCS)) {
    b->ids = malloc((size_t)(B * T) * sizeof *b->ids);
    for (int64_t s = 0; s < B; s++)
      for (int64_t t = 0, first = 0; t < T; t++) {
        if (wn_random_below(3, WN_STREAM_TEST, (uint64_t)s, (uint64_t)t, T > 32 ? 20 : 4) == 0) first = t;
        b->ids[s * T + t] = (int32_t)first;
      }
  }
  if (!has(b, SEL)) return;
  array_add(b, "F", OUT, B * T, T, 0, -1);
  array_add(b, "f_out", OUT, B, T, 0, -1);
  array_add(b, "M", OUT, B, T, 0, has(b, MEM) ? T_DM : -1);
  array_add(b, "dM", CONST, B, T, 0, -1);
  if (!has(b, BILINEAR)) return;
  array_add(b, "sq", INPUT, B * T, D, b->c->n[5], -1);
  array_add(b, "sk", INPUT, B * T, D, b->c->n[5], -1);
  array_add(b, "dsq", GRAD, B * T, D, b->c->n[5], T_SQ);
  array_add(b, "dsk", GRAD, B * T, D, b->c->n[5], T_SK);
}
static struct wn_attention attention_args(struct bench *b) {
  const int64_t T = b->c->n[1], D = b->c->n[4], H = b->c->n[2], Hkv = b->c->n[3];
  struct wn_attention a = {.B = b->c->n[0], .Tq = T, .Tk = T, .H = H, .Hkv = Hkv, .D = D, .scale = 1 / sqrt((double)D)};
  a.q = AT(T_Q), a.s_q = heads_stride(b, T_Q, H), a.k = AT(T_K), a.s_k = heads_stride(b, T_K, Hkv);
  a.v = AT(T_V), a.s_v = heads_stride(b, T_V, Hkv), a.y = AT(T_Y), a.s_y = heads_stride(b, T_Y, H);
  a.lse = AT(T_LSE), a.doc_start = b->ids;
  a.dy = AT(T_DY), a.dq = AT(T_DQ), a.dk = AT(T_DK), a.dv = AT(T_DV);
  if (!has(b, SEL)) return a;
  a.sel.on = true, a.sel.relu = !has(b, NO_RELU), a.sel.protect_first = !has(b, OPEN_FIRST);
  a.sel.protect_self = !has(b, OPEN_SELF), a.sel.shift = !has(b, NO_SHIFT), a.sel.bilinear = has(b, BILINEAR);
  a.sel.head = has(b, LAST_HEAD) ? (int)H - 1 : 0;
  a.sel.F = AT(T_F), a.sel.f_out = AT(T_FOUT);
  if (has(b, MEM)) a.sel.mem = true, a.sel.mem_tau = 0.8, a.sel.M = AT(T_M), a.sel.dM = AT(T_DM);
  if (!has(b, BILINEAR)) return a;
  a.sel.sq = AT(T_SQ), a.sel.sk = AT(T_SK), a.dsq = AT(T_DSQ), a.dsk = AT(T_DSK);
  a.sel.s_sq = a.sel.s_sk = (struct wn_stride){.b = T * LD(T_SQ), .t = LD(T_SQ)};
  return a;
}
static wn_status call_attention(struct bench *b, struct wn_exec e, bool backward) {
  const struct wn_attention a = attention_args(b);
  return run_attention(e, &a, backward);
}

static const struct {
  const char *name;
  void (*declare)(struct bench *);
  wn_status (*call)(struct bench *, struct wn_exec, bool backward);
} op_rows[] = {
    [LINEAR] = {"linear", declare_linear, call_linear},
    [EMBEDDING] = {"embedding", declare_embedding, call_embedding},
    [NORM] = {"norm", declare_norm, call_norm},
    [ROPE] = {"rope", declare_rope, call_rope},
    [ACT] = {"act", declare_act, call_act},
    [DROPOUT] = {"dropout", declare_dropout, call_dropout},
    [ADD] = {"add", declare_add, call_add},
    [CROSS_ENTROPY] = {"cross_entropy", declare_cross_entropy, call_cross_entropy},
    [ADAMW] = {"adamw", declare_optimizer, call_adamw},
    [ADAGRAD] = {"adagrad", declare_optimizer, call_adagrad},
    [SUMSQ] = {"sumsq", declare_sumsq, call_sumsq},
    [ATTENTION] = {"attention", declare_attention, call_attention},
    [SOFTCAP] = {"softcap", declare_dropout, call_softcap},
    [SUMS] = {"attention_sums", declare_sums, call_sums},
};

/* Fills all arrays from (case, array, element): the same numbers in every dtype, exact in float, and with precision
 * bf16 exact in bf16. Bit i of `bf16`: array i is stored as bf16. */
static void bench_make_mixed(struct bench *b, const struct op_case *c, wn_dtype dtype, wn_dtype precision,
                             unsigned bf16) {
  *b = (struct bench){.c = c, .dtype = dtype, .precision = dtype == WN_F64 ? WN_F32 : precision};
  op_rows[c->op].declare(b);
  for (int i = 0; i < b->count; i++) {
    struct array *a = &b->a[i];
    const int64_t n = elements(a);
    a->bf16 = bf16 >> i & 1;
    a->data = malloc((size_t)(n ? n : 1) * (a->wide   ? sizeof(double)
                                            : a->bf16 ? sizeof(uint16_t)
                                                      : wn_dtype_size(dtype)));
    for (int64_t k = 0; k < n; k++) {
      const double u = wn_random_uniform((uint64_t)(c - op_cases), WN_STREAM_TEST, (uint64_t)i, (uint64_t)k);
      const double z = (2 * u - 1) * 1.7320508075688772; /* of variance 1 */
      const double v = a->offset + a->scale * z;
      const float exact = (float)(a->positive ? fabs(v) : v);
      array_set(b, i, k, (double)(precision == WN_BF16 ? wn_bf16_value(wn_bf16_round(exact)) : exact));
    }
  }
}

static inline void bench_make(struct bench *b, const struct op_case *c, wn_dtype dtype) {
  bench_make_mixed(b, c, dtype, WN_F32, 0);
}

static void bench_clear(struct bench *b) {
  for (int i = 0; i < b->count; i++) free(b->a[i].data);
  free(b->ids);
  free(b->positions);
  free(b->table);
  free(b->frequencies);
}

/* Text such as "attention 2x9x4x2x8x3 flags 0x100", in a static buffer. */
static const char *case_name(const struct op_case *c) {
  static char text[160];
  snprintf(text, sizeof text, "%s %lldx%lldx%lldx%lldx%lldx%lld flags 0x%x", op_rows[c->op].name, (long long)c->n[0],
           (long long)c->n[1], (long long)c->n[2], (long long)c->n[3], (long long)c->n[4], (long long)c->n[5],
           c->flags);
  return text;
}

#endif
