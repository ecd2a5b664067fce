/* Products of numbers rounded to bf16, summed in float, in AMX tiles: c = a b. Each operand may be float or bf16, and
 * stored along the reduced dimension or across it. 2MNK operations.
 *
 * One instruction multiplies a 16 by 32 tile of a with a 32 by 16 tile of b and adds to 16 by 16 floats. b is rounded
 * and packed in groups of columns that stay in the L2 cache. Rows of a are used in place if they are whole tiles of
 * bf16, and packed otherwise. Nothing is rounded before the product, so each weight is read once, in its stored type.
 * The terms of a number of c and their order do not depend on how the product is divided: neither on threads nor on
 * neighbouring numbers. */
#include <immintrin.h>
#include "backends/cpu/attention/impl.h"
#include "backends/cpu/cpu.h"
#include "backends/cpu/vec.h"

#include "backends/cpu/attention/transpose.inc"

enum {
  TILE = 16,           /* rows in a tile, of 64 bytes each */
  STEP = 32,           /* length of the reduced dimension in a tile */
  SIDE = 2 * TILE,     /* c is summed in squares of this size: four tiles */
  TILE_NUMBERS = 512,  /* bf16 numbers in a tile */
  PACKED = 512 * 1024, /* numbers of b packed at a time: half of an L2 cache of 2 MiB */
  ROWS = 4 * SIDE,     /* rows of a packed at a time */
  DEPTH = 1024,        /* length of the reduced dimension at a time, if c can be added to */
};

/* ---- packing ---- */

V_INLINE __mmask16 first_of(int64_t n) {
  return n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1u << n) - 1);
}
V_INLINE __mmask32 first_of_32(int64_t n) {
  return n >= 32 ? (__mmask32)0xffffffffu : n <= 0 ? (__mmask32)0 : (__mmask32)((1u << n) - 1);
}

/* 32 consecutive numbers, of which `count` exist. */
V_INLINE __m512i pack_along(const void *x, int64_t at, int64_t count, const bool bf16) {
  if (bf16) return _mm512_maskz_loadu_epi16(first_of_32(count), (const uint16_t *)x + at);
  const float *from = (const float *)x + at;
  const __m512 low = _mm512_maskz_loadu_ps(first_of(count), from);
  const __m512 high = _mm512_maskz_loadu_ps(first_of(count - 16), count > 16 ? from + 16 : from);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* 16 pairs from two lines with stride ld; the second line may be missing; `count` numbers exist in each. */
V_INLINE __m512i pack_across(const void *x, int64_t at, int64_t ld, bool second, int64_t count, const bool bf16) {
  const __mmask16 mask = first_of(count), too = second ? mask : (__mmask16)0;
  if (!second) ld = 0;
  __m512i both;
  if (bf16) {
    const uint16_t *from = (const uint16_t *)x + at;
    const __m256i low = _mm256_maskz_loadu_epi16(mask, from), high = _mm256_maskz_loadu_epi16(too, from + ld);
    both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  } else {
    const float *from = (const float *)x + at;
    const __m512 low = _mm512_maskz_loadu_ps(mask, from), high = _mm512_maskz_loadu_ps(too, from + ld);
    both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  }
  const __m512i even = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                        5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(even, both);
}

/* Packs one tile: 16 of the kept dimension from o on (`rows` exist) by 32 of the reduced dimension from k on (`depth`
 * exist). A tile of a has 16 rows of 32 numbers; a tile of b has 16 rows, each with 16 pairs of two neighbours in the
 * reduced dimension. */
V_INLINE void pack_part(const struct wn_cpu_operand *x, int64_t o, int64_t rows, int64_t k, int64_t depth, uint16_t *to,
                        const bool of_a, const bool along, const bool bf16) {
  const void *from = x->x;
  const int64_t ld = x->ld;
  vf line[VL];
#pragma GCC unroll 16
  for (int i = 0; i < TILE; i++) {
    __m512i part = _mm512_setzero_si512();
    if (along && i < rows) part = pack_along(from, (o + i) * ld + k, depth, bf16);
    if (!along && 2 * i < depth) part = pack_across(from, (k + 2 * i) * ld + o, ld, 2 * i + 1 < depth, rows, bf16);
    line[i] = _mm512_castsi512_ps(part);
  }
  if (along != of_a) transpose_block(line);
#pragma GCC unroll 16
  for (int i = 0; i < TILE; i++) _mm512_storeu_si512(to + (int64_t)i * STEP, _mm512_castps_si512(line[i]));
}

/* A variant without conditions for the common case of a full tile. */
#define PACK_TILE(name, of_a, along, bf16)                                                                             \
  static void name(const struct wn_cpu_operand *x, int64_t o, int64_t rows, int64_t k, int64_t depth, uint16_t *to) {  \
    if (rows >= TILE && depth >= STEP)                                                                                 \
      pack_part(x, o, TILE, k, STEP, to, of_a, along, bf16);                                                           \
    else                                                                                                               \
      pack_part(x, o, rows, k, depth, to, of_a, along, bf16);                                                          \
  }
PACK_TILE(a_across_floats, true, false, false)
PACK_TILE(a_across_bf16, true, false, true)
PACK_TILE(a_along_floats, true, true, false)
PACK_TILE(a_along_bf16, true, true, true)
PACK_TILE(b_across_floats, false, false, false)
PACK_TILE(b_across_bf16, false, false, true)
PACK_TILE(b_along_floats, false, true, false)
PACK_TILE(b_along_bf16, false, true, true)

/* Packs `count` of the kept dimension from o on by `depth` of the reduced dimension from k on:
 * [count/SIDE][depth/STEP][2] tiles; zeros after the end. Lines are read in order. */
static void pack(const struct wn_cpu_operand *x, bool of_a, int64_t o, int64_t count, int64_t k, int64_t depth,
                 uint16_t *to) {
  static void (*const tiles[2][2][2])(const struct wn_cpu_operand *, int64_t, int64_t, int64_t, int64_t, uint16_t *) = {
      {{b_across_floats, b_across_bf16}, {b_along_floats, b_along_bf16}},
      {{a_across_floats, a_across_bf16}, {a_along_floats, a_along_bf16}}};
  void (*const tile)(const struct wn_cpu_operand *, int64_t, int64_t, int64_t, int64_t, uint16_t *) =
      tiles[of_a][x->along][x->bf16];
  const int64_t steps = (depth + STEP - 1) / STEP, sides = (count + SIDE - 1) / SIDE;
  const int64_t outer = x->along ? sides : steps, inner = x->along ? steps : sides;
  for (int64_t i = 0; i < outer; i++) {
    for (int64_t j = 0; j < inner; j++) {
      const int64_t s = x->along ? i : j, d = x->along ? j : i, at = o + s * SIDE, rows = count - s * SIDE;
      uint16_t *two = to + (s * steps + d) * 2 * TILE_NUMBERS;
      tile(x, at, rows, k + d * STEP, depth - d * STEP, two);
      tile(x, at + TILE, rows - TILE, k + d * STEP, depth - d * STEP, two + TILE_NUMBERS);
    }
  }
}

/* ---- sums ---- */

static void amx_begin(void) {
  struct wn_cpu_amx_shape tiles[WN_CPU_AMX_TILES];
  for (int i = 0; i < WN_CPU_AMX_TILES; i++) tiles[i] = (struct wn_cpu_amx_shape){.rows = TILE, .bytes = 64};
  wn_cpu_amx_begin(tiles);
}

/* Two tiles of a side of a: both start at `a`; strides of rows and of steps in bytes. */
struct amx_rows {
  const char *first, *second;
  int64_t row, step;
};

/* SIDE x SIDE of c += a b over `steps` steps. c [SIDE, ldc] is added to, or, with `fresh`, written. */
V_INLINE void amx_block(const struct amx_rows *a, const uint16_t *b, int64_t steps, bool fresh, float *c, int64_t ldc) {
  const int64_t row = ldc * (int64_t)sizeof *c;
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, c, row);
    _tile_loadd(1, c + TILE, row);
    _tile_loadd(2, c + TILE * ldc, row);
    _tile_loadd(3, c + TILE * ldc + TILE, row);
  }
  const char *first = a->first, *second = a->second;
  for (int64_t s = 0; s < steps; s++) {
    _tile_loadd(4, first, a->row);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + TILE_NUMBERS, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, second, a->row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    first += a->step, second += a->step, b += 2 * TILE_NUMBERS;
  }
  _tile_stored(0, c, row);
  _tile_stored(1, c + TILE, row);
  _tile_stored(2, c + TILE * ldc, row);
  _tile_stored(3, c + TILE * ldc + TILE, row);
}

/* Stores a block of sums [SIDE,SIDE] at (m, n), `rows` by `columns` of it, plus the bias; with `add`, adds it to c. */
static void amx_keep(const struct wn_cpu_amx_product *x, const float *sums, int64_t m, int64_t n, int64_t rows,
                     int64_t columns, const float *bias, bool add) {
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < columns; j += VL) {
      const __mmask16 mask = first_of(columns - j);
      const int64_t at = (m + i) * x->ldc + n + j;
      __m512 v = _mm512_load_ps(sums + i * SIDE + j);
      if (bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias + n + j));
      if (x->c_bf16) {
        _mm256_mask_storeu_epi16((uint16_t *)x->c + at, mask, (__m256i)_mm512_cvtneps_pbh(v));
        continue;
      }
      float *to = (float *)x->c + at;
      if (add) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, v);
    }
  }
}

/* ---- division ---- */

/* A task is `rows` rows by `columns` columns of c; `depth` of the reduced dimension at a time. */
struct amx_plan {
  int64_t rows, columns, depth, row_tasks, column_tasks;
};

static int64_t up_to_whole(int64_t n, int64_t whole) {
  return (n + whole - 1) / whole * whole;
}

static int64_t amx_most_columns(int64_t depth) {
  const int64_t most = PACKED / depth / SIDE * SIDE;
  return most > SIDE ? most : SIDE;
}

/* The longer of M and N is divided among threads; each thread packs for itself what it needs of the other. */
static struct amx_plan amx_divide(int threads, const struct wn_cpu_amx_product *x) {
  const int64_t turns = x->c_bf16 ? 1 : (x->K + DEPTH - 1) / DEPTH;
  struct amx_plan p = {.depth = up_to_whole((x->K + turns - 1) / turns, STEP), .row_tasks = 1};
  const int64_t most = amx_most_columns(p.depth);
  p.column_tasks = (x->N + most - 1) / most;
  if (x->N >= x->M)
    p.column_tasks = up_to_whole(p.column_tasks, threads);
  else
    p.row_tasks = threads;
  p.columns = up_to_whole((x->N + p.column_tasks - 1) / p.column_tasks, SIDE);
  p.rows = up_to_whole((x->M + p.row_tasks - 1) / p.row_tasks, SIDE);
  p.column_tasks = (x->N + p.columns - 1) / p.columns;
  p.row_tasks = (x->M + p.rows - 1) / p.rows;
  return p;
}

/* A thread's scratch: packed b, packed a, sums of a block. */
struct amx_room {
  size_t b, a, bytes; /* bytes of the first, of the first two, of all three */
};
static struct amx_room amx_room_of(int64_t N, int64_t K, bool c_bf16) {
  const int64_t depth = c_bf16 ? up_to_whole(K, STEP) : DEPTH, whole = up_to_whole(N, SIDE);
  const int64_t most = amx_most_columns(depth) * depth > PACKED ? amx_most_columns(depth) * depth : PACKED;
  struct amx_room r = {.b = (size_t)(whole < most / depth + 1 ? whole * depth : most) * sizeof(uint16_t)};
  r.a = r.b + (size_t)(ROWS * depth) * sizeof(uint16_t);
  r.bytes = r.a + SIDE * SIDE * sizeof(float);
  return r;
}

size_t wn_cpu_amx_scratch(int threads, int64_t N, int64_t K, bool c_bf16) {
  return amx_room_of(N, K, c_bf16).bytes * (size_t)threads;
}

/* Can rows of a be used in place? Not if their stride maps all of them to a few lines of the L1 cache. */
static bool amx_lies(const struct wn_cpu_amx_product *x, int64_t rows, int64_t depth) {
  const int64_t row = x->a.ld * (int64_t)sizeof(uint16_t);
  return x->a.bf16 && x->a.along && rows % SIDE == 0 && depth % STEP == 0 && row % 2048 != 0;
}

/* SIDE rows of c from m on times the packed columns [n0,n1) of b. */
static void amx_side(const struct wn_cpu_amx_product *x, const struct amx_rows *side, const uint16_t *b, int64_t k,
                     int64_t steps, int64_t m, int64_t rows, int64_t n0, int64_t n1, float *sums) {
  const float *bias = k == 0 ? x->bias : NULL;
  const bool add = x->add || k > 0;
  for (int64_t n = n0; n < n1; n += SIDE) {
    const uint16_t *panel = b + (n - n0) * steps * STEP;
    const int64_t columns = n1 - n < SIDE ? n1 - n : SIDE;
    if (!x->c_bf16 && !bias && rows == SIDE && columns == SIDE) {
      float *c = (float *)x->c + m * x->ldc + n;
      for (int i = 0; i < SIDE && n + 2 * SIDE <= n1; i++) { /* prefetches the next block of c */
        __builtin_prefetch(c + i * x->ldc + SIDE, 1);
        __builtin_prefetch(c + i * x->ldc + SIDE + TILE, 1);
      }
      amx_block(side, panel, steps, !add, c, x->ldc);
    } else {
      amx_block(side, panel, steps, true, sums, SIDE);
      amx_keep(x, sums, m, n, rows, columns, bias, add);
    }
  }
}

static void amx_task(const struct wn_cpu_amx_product *x, const struct amx_plan *p, int64_t task, char *room) {
  const struct amx_room at = amx_room_of(x->N, x->K, x->c_bf16);
  uint16_t *b = (uint16_t *)(void *)room, *a = (uint16_t *)(void *)(room + at.b);
  float *sums = (float *)(void *)(room + at.a);
  const int64_t m0 = task % p->row_tasks * p->rows, n0 = task / p->row_tasks * p->columns;
  const int64_t m1 = m0 + p->rows < x->M ? m0 + p->rows : x->M, n1 = n0 + p->columns < x->N ? n0 + p->columns : x->N;
  const int64_t row = x->a.ld * (int64_t)sizeof(uint16_t);
  for (int64_t k = 0; k < x->K; k += p->depth) {
    const int64_t depth = x->K - k < p->depth ? x->K - k : p->depth, steps = (depth + STEP - 1) / STEP;
    pack(&x->b, false, n0, n1 - n0, k, depth, b);
    for (int64_t m = m0; m < m1; m += ROWS) {
      const int64_t rows = m1 - m < ROWS ? m1 - m : ROWS;
      const bool lies = amx_lies(x, rows, depth);
      if (!lies) pack(&x->a, true, m, rows, k, depth, a);
      for (int64_t i = 0; i < rows; i += SIDE) {
        const char *first = (const char *)(a + i * steps * STEP);
        struct amx_rows side = {.first = first,
                                .second = first + TILE_NUMBERS * sizeof *a,
                                .row = 64,
                                .step = 2 * TILE_NUMBERS * sizeof *a};
        if (lies) {
          first = (const char *)((const uint16_t *)x->a.x + (m + i) * x->a.ld + k);
          side = (struct amx_rows){.first = first, .second = first + TILE * row, .row = row, .step = STEP * sizeof *a};
        }
        amx_side(x, &side, b, k, steps, m + i, rows - i < SIDE ? rows - i : SIDE, n0, n1, sums);
      }
    }
  }
}

struct amx_call {
  const struct wn_cpu_amx_product *x;
  struct amx_plan plan;
  char *scratch;
  size_t room; /* of a hand */
};
static void amx_tasks(void *args) {
  const struct amx_call *c = args;
  amx_begin();
  for (int64_t t; wn_task(c->plan.row_tasks * c->plan.column_tasks, &t);)
    amx_task(c->x, &c->plan, t, c->scratch + (size_t)wn_hand() * c->room);
  wn_cpu_amx_end();
}

void wn_cpu_product_amx(const struct wn_exec *exec, const struct wn_cpu_amx_product *x) {
  const struct amx_call c = {x, amx_divide(exec->threads, x), exec->scratch, amx_room_of(x->N, x->K, x->c_bf16).bytes};
  const int64_t tasks = c.plan.row_tasks * c.plan.column_tasks;
  wn_parallel(tasks < exec->threads ? (int)tasks : exec->threads, amx_tasks, &c);
}
