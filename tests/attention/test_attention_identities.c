/* Identities that attention must satisfy, whatever computes it: without selections it is dense attention; chunked
 * prefill and single-token decoding give the same rows as one call; packed documents are separate documents; grouped
 * heads are repeated keys; no row sees the future; the number of threads changes nothing but rounding. On ref, and on
 * the cpu backend with each instruction set. */
#include "isa.h"
#include "support.h"

#include <math.h>
#include "backends/backends.h"
#include "base/rng.h"
#include "ops/attention.h"

enum { MAX_B = 2, MAX_T = 150, MAX_H = 4, MAX_D = 32, TOKENS = MAX_B * MAX_T, FLOATS = TOKENS * MAX_H * MAX_D };

struct variant {
  const char *name;
  bool on, relu, protect_first, protect_self, shift, bilinear, mem;
  int head;
};
static const struct variant variants[] = {
    {"dense", .on = false},
    {"selective", true, true, true, true, true, false, true, 0},
    {"last head", true, true, true, true, true, false, true, 3},
    {"no relu", true, false, true, true, true, false, false, 0},
    {"open first", true, true, false, true, true, false, false, 0},
    {"open self, no shift", true, true, true, false, false, false, true, 1},
    {"bilinear", true, true, true, true, true, true, true, 0},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* The arrays of one run, [B,T,heads,D]. Static: tests run one after another. */
struct run {
  int64_t B, T, H, Hkv, D;
  const struct variant *v;
  float q[FLOATS], k[FLOATS], v_[FLOATS], dy[FLOATS], sq[TOKENS * MAX_D], sk[TOKENS * MAX_D];
  int32_t doc_start[TOKENS];
  bool docs;
  float y[FLOATS], dq[FLOATS], dk[FLOATS], dv[FLOATS], dsq[TOKENS * MAX_D], dsk[TOKENS * MAX_D];
  float lse[TOKENS * MAX_H], M[TOKENS], f_out[TOKENS];
};
static struct run whole, other;

static wn_context *ctx;
static const struct wn_backend *backend;
static int threads = 1; /* calls are so small that threads would mostly wait */

static void fill(float *to, int64_t n, uint64_t salt) {
  for (int64_t i = 0; i < n; i++)
    to[i] = (float)((2 * wn_random_uniform(5, WN_STREAM_TEST, salt, (uint64_t)i) - 1) * 1.7320508075688772);
}

static void make(struct run *r, const struct variant *v, int64_t B, int64_t T, int64_t H, int64_t Hkv, int64_t D) {
  memset(r, 0, sizeof *r);
  r->B = B, r->T = T, r->H = H, r->Hkv = Hkv, r->D = D, r->v = v;
  fill(r->q, B * T * H * D, 1);
  fill(r->k, B * T * Hkv * D, 2);
  fill(r->v_, B * T * Hkv * D, 3);
  fill(r->dy, B * T * H * D, 4);
  fill(r->sq, B * T * D, 5);
  fill(r->sk, B * T * D, 6);
}

static struct wn_attention arguments(struct run *r) {
  const int64_t T = r->T, D = r->D;
  const struct wn_stride of_q = {.b = T * r->H * D, .t = r->H * D, .h = D};
  const struct wn_stride of_k = {.b = T * r->Hkv * D, .t = r->Hkv * D, .h = D};
  struct wn_attention a = {.B = r->B, .Tq = T, .Tk = T, .H = r->H, .Hkv = r->Hkv, .D = D, .scale = 1 / sqrt((double)D)};
  a.q = r->q, a.k = r->k, a.v = r->v_, a.y = r->y, a.lse = r->lse;
  a.s_q = a.s_y = of_q, a.s_k = a.s_v = of_k;
  if (r->docs) a.doc_start = r->doc_start;
  a.dy = r->dy, a.dq = r->dq, a.dk = r->dk, a.dv = r->dv;
  if (!r->v->on) return a;
  a.sel.on = true, a.sel.relu = r->v->relu, a.sel.protect_first = r->v->protect_first;
  a.sel.protect_self = r->v->protect_self, a.sel.shift = r->v->shift, a.sel.head = r->v->head;
  a.sel.f_out = r->f_out;
  if (r->v->mem) a.sel.mem = true, a.sel.mem_tau = 1, a.sel.M = r->M;
  if (!r->v->bilinear) return a;
  a.sel.bilinear = true, a.sel.sq = r->sq, a.sel.sk = r->sk, a.dsq = r->dsq, a.dsk = r->dsk;
  a.sel.s_sq = a.sel.s_sk = (struct wn_stride){.b = T * D, .t = D};
  return a;
}

static void call(const struct wn_attention *a, bool backward) {
  struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = threads, .dtype = WN_F32};
  e.scratch_bytes = wn_op_attention_scratch(&e, a, backward);
  const size_t room = (e.scratch_bytes + 63) / 64 * 64;
  e.scratch = room ? aligned_alloc(64, room) : NULL;
  if (room) memset(e.scratch, 0xff, room);
  assert_ok(ctx, backward ? wn_op_attention_backward(&e, a) : wn_op_attention_forward(&e, a));
  free(e.scratch);
}

static void run_both(struct run *r) {
  const struct wn_attention a = arguments(r);
  call(&a, false);
  call(&a, true);
}

static void close_to(const char *what, const char *variant, const float *got, const float *want, int64_t n,
                     double relative) {
  double largest = 0;
  for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
  for (int64_t i = 0; i < n; i++)
    if (!(fabs((double)got[i] - (double)want[i]) <= relative * largest))
      fail_msg("%s (%s) on %s %s: element %lld is %.9g, expected %.9g", what, variant, backend->name,
               wn_isa_name(ctx->isa), (long long)i, (double)got[i], (double)want[i]);
}

static void same_results(const char *what, struct run *got, struct run *want, double relative) {
  const int64_t nq = want->B * want->T * want->H * want->D, nk = want->B * want->T * want->Hkv * want->D;
  const char *name = want->v->name;
  close_to(what, name, got->y, want->y, nq, relative);
  close_to(what, name, got->dq, want->dq, nq, relative);
  close_to(what, name, got->dk, want->dk, nk, relative);
  close_to(what, name, got->dv, want->dv, nk, relative);
  close_to(what, name, got->f_out, want->f_out, want->B * want->T, relative);
  close_to(what, name, got->M, want->M, want->B * want->T, relative);
  close_to(what, name, got->dsq, want->dsq, want->B * want->T * want->D, relative);
  close_to(what, name, got->dsk, want->dsk, want->B * want->T * want->D, relative);
}

static void check_zero_selection(void) {
  for (int relu = 0; relu < 2; relu++) {
    make(&whole, &variants[0], 2, 67, 4, 2, 16);
    run_both(&whole);
    /* Nothing is selected: the bilinear form is zero, with and without ReLU. */
    const struct variant none = {"bilinear of zeros", true, relu, true, true, true, true, false, 0};
    make(&other, &none, 2, 67, 4, 2, 16);
    memset(other.sq, 0, sizeof other.sq);
    run_both(&other);
    for (int i = 0; i < TOKENS; i++) assert_true(other.f_out[i] == 0);
    close_to("no selection", none.name, other.y, whole.y, 2 * 67 * 4 * 16, 1e-6);
    close_to("no selection", none.name, other.dq, whole.dq, 2 * 67 * 4 * 16, 2e-6);
    close_to("no selection", none.name, other.dk, whole.dk, 2 * 67 * 2 * 16, 2e-6);
    close_to("no selection", none.name, other.dv, whole.dv, 2 * 67 * 2 * 16, 2e-6);
    /* ReLU passes no gradient at 0. Without it the zeros would get one. */
    bool moved = false;
    for (int i = 0; i < 2 * 67 * 16; i++) moved = moved || other.dsq[i] != 0;
    assert_int_equal(moved, !relu);
  }
  /* The selecting head's logits are all negative: q[head] > 0 > k. */
  make(&whole, &variants[0], 1, 40, 2, 1, 16);
  for (int64_t i = 0; i < 40 * 2 * 16; i++) whole.q[i] = fabsf(whole.q[i]);
  for (int64_t i = 0; i < 40 * 16; i++) whole.k[i] = -fabsf(whole.k[i]);
  other = whole;
  other.v = &variants[1];
  run_both(&whole);
  run_both(&other);
  close_to("negative logits", "selective", other.y, whole.y, 40 * 2 * 16, 1e-6);
  close_to("negative logits", "selective", other.dq, whole.dq, 40 * 2 * 16, 2e-6);
  close_to("negative logits", "selective", other.dk, whole.dk, 40 * 16, 2e-6);
}

/* The same rows in chunks of `chunk` (0: of growing size). Each chunk is given the F that earlier rows have summed up.
 */
static void run_chunks(struct run *r, int64_t chunk) {
  static float f[TOKENS], next[TOKENS], M[TOKENS];
  static int32_t first[TOKENS];
  for (int64_t start = 0, size = 1; start < r->T; start += size) {
    const int64_t before = size;
    size = chunk ? chunk : start ? before * 2 + 1 : 1;
    if (size > r->T - start) size = r->T - start;
    const int64_t Tk = start + size;
    struct wn_attention a = arguments(r);
    a.Tq = size, a.Tk = Tk;
    a.q = r->q + start * r->H * r->D;
    a.y = r->y + start * r->H * r->D;
    a.lse = NULL;
    for (int64_t b = 0; b < r->B; b++)
      for (int64_t j = 0; j < Tk; j++) {
        first[b * Tk + j] = r->doc_start[b * r->T + j];
        next[b * Tk + j] = j < start ? f[b * start + j] : 0;
      }
    if (r->docs) a.doc_start = first;
    if (a.sel.on) {
      a.sel.f_in = start ? next : NULL;
      a.sel.f_out = chunk == 1 && start ? next : f; /* in place too */
      if (a.sel.mem) a.sel.M = M;
      if (a.sel.bilinear) a.sel.sq = r->sq + start * r->D;
    }
    call(&a, false);
    if (a.sel.on && a.sel.f_out == next) memcpy(f, next, (size_t)(r->B * Tk) * sizeof *f);
    for (int64_t b = 0; b < r->B; b++)
      for (int64_t i = 0; i < size; i++) r->M[b * r->T + start + i] = a.sel.mem ? M[b * size + i] : 0;
  }
  if (r->v->on) memcpy(r->f_out, f, (size_t)(r->B * r->T) * sizeof *f);
}

static void set_documents(struct run *r) {
  r->docs = true;
  for (int64_t b = 0; b < r->B; b++)
    for (int64_t t = 0, first = 0; t < r->T; t++) {
      if (t == 1 + b || t == 23 || t == 40 + 7 * b || t == 64) first = t;
      r->doc_start[b * r->T + t] = (int32_t)first;
    }
}

static void check_chunks(void) {
  static const int64_t chunks[] = {1, 7, 64, 0};
  for (int v = 0; v < VARIANTS; v++)
    for (int docs = 0; docs < 2; docs++) {
      make(&whole, &variants[v], 2, 131, 4, 2, 16);
      if (docs) set_documents(&whole);
      other = whole;
      const struct wn_attention a = arguments(&whole);
      call(&a, false);
      for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        memset(other.y, 0xff, sizeof other.y);
        run_chunks(&other, chunks[c]);
        close_to("chunks", variants[v].name, other.y, whole.y, 2 * 131 * 4 * 16, 5e-6);
        close_to("F of chunks", variants[v].name, other.f_out, whole.f_out, 2 * 131, 5e-6);
        close_to("M of chunks", variants[v].name, other.M, whole.M, 2 * 131, 5e-6);
      }
    }
}

/* Rows [first,first+T) of one packed sequence, as a sequence of their own. */
static void cut(struct run *to, const struct run *from, int64_t first, int64_t T) {
  const int64_t wq = from->H * from->D, wk = from->Hkv * from->D;
  make(to, from->v, 1, T, from->H, from->Hkv, from->D);
  memcpy(to->q, from->q + first * wq, (size_t)(T * wq) * sizeof(float));
  memcpy(to->dy, from->dy + first * wq, (size_t)(T * wq) * sizeof(float));
  memcpy(to->k, from->k + first * wk, (size_t)(T * wk) * sizeof(float));
  memcpy(to->v_, from->v_ + first * wk, (size_t)(T * wk) * sizeof(float));
  memcpy(to->sq, from->sq + first * from->D, (size_t)(T * from->D) * sizeof(float));
  memcpy(to->sk, from->sk + first * from->D, (size_t)(T * from->D) * sizeof(float));
}

static void check_documents(void) {
  static const int64_t starts[] = {0, 1, 23, 40, 64, 100};
  for (int v = 0; v < VARIANTS; v++) {
    make(&whole, &variants[v], 1, 100, 4, 2, 16);
    set_documents(&whole);
    run_both(&whole);
    for (int d = 0; d < 5; d++) {
      const int64_t first = starts[d], T = starts[d + 1] - first;
      cut(&other, &whole, first, T);
      run_both(&other);
      static struct run packed; /* the same rows of the packed run's results */
      cut(&packed, &whole, first, T);
      memcpy(packed.y, whole.y + first * 64, (size_t)(T * 64) * sizeof(float));
      memcpy(packed.dq, whole.dq + first * 64, (size_t)(T * 64) * sizeof(float));
      memcpy(packed.dk, whole.dk + first * 32, (size_t)(T * 32) * sizeof(float));
      memcpy(packed.dv, whole.dv + first * 32, (size_t)(T * 32) * sizeof(float));
      memcpy(packed.f_out, whole.f_out + first, (size_t)T * sizeof(float));
      memcpy(packed.M, whole.M + first, (size_t)T * sizeof(float));
      memcpy(packed.dsq, whole.dsq + first * 16, (size_t)(T * 16) * sizeof(float));
      memcpy(packed.dsk, whole.dsk + first * 16, (size_t)(T * 16) * sizeof(float));
      same_results("packed documents", &packed, &other, 5e-6);
    }
  }
}

static void check_one_token(void) {
  for (int v = 0; v < VARIANTS; v++) {
    make(&whole, &variants[v], 2, 1, 4, 2, 32);
    run_both(&whole);
    for (int b = 0; b < 2; b++)
      for (int h = 0; h < 4; h++)
        for (int d = 0; d < 32; d++) {
          const int i = (b * 4 + h) * 32 + d, g = (b * 2 + h / 2) * 32 + d;
          assert_true(whole.y[i] == whole.v_[g]);
          assert_true(whole.dq[i] == 0 && whole.dk[g] == 0);
          const float sum = whole.dy[(b * 4 + h / 2 * 2) * 32 + d] + whole.dy[(b * 4 + h / 2 * 2 + 1) * 32 + d];
          assert_true(fabsf(whole.dv[g] - sum) <= 1e-6f * (1 + fabsf(sum)));
        }
    for (int b = 0; b < 2; b++) {
      assert_true(whole.M[b] == (whole.v->mem ? 1 : 0) || !whole.v->shift);
      assert_true(whole.f_out[b] == 0 || !whole.v->protect_first);
    }
  }
}

static void check_groups(void) {
  for (int v = 0; v < VARIANTS; v++) {
    make(&whole, &variants[v], 2, 66, 4, 2, 24);
    other = whole;
    other.Hkv = 4;
    for (int64_t t = 0; t < 2 * 66; t++)
      for (int64_t h = 0; h < 4; h++) {
        memcpy(other.k + (t * 4 + h) * 24, whole.k + (t * 2 + h / 2) * 24, 24 * sizeof(float));
        memcpy(other.v_ + (t * 4 + h) * 24, whole.v_ + (t * 2 + h / 2) * 24, 24 * sizeof(float));
      }
    run_both(&whole);
    run_both(&other);
    for (int64_t t = 0; t < 2 * 66; t++) /* a key's gradient is the sum over its group's heads */
      for (int64_t g = 0; g < 2; g++)
        for (int64_t d = 0; d < 24; d++) {
          const int64_t to = (t * 2 + g) * 24 + d, from = (t * 4 + 2 * g) * 24 + d;
          other.dk[to] = other.dk[from] + other.dk[from + 24];
          other.dv[to] = other.dv[from] + other.dv[from + 24];
        }
    same_results("grouped heads", &other, &whole, 5e-6);
  }
}

static void check_causality(void) {
  for (int v = 0; v < VARIANTS; v++) {
    make(&whole, &variants[v], 1, 90, 4, 2, 16);
    other = whole;
    for (int64_t i = 70 * 64; i < 90 * 64; i++) other.q[i] += 1, other.dy[i] = 0, whole.dy[i] = 0;
    for (int64_t i = 70 * 32; i < 90 * 32; i++) other.k[i] -= 2, other.v_[i] *= 3;
    for (int64_t i = 70 * 16; i < 90 * 16; i++) other.sq[i] += 1, other.sk[i] -= 1;
    run_both(&whole);
    run_both(&other);
    close_to("the past", variants[v].name, other.y, whole.y, 70 * 64, 1e-6);
    /* Rows whose output gradient is 0 pass no gradient back and get none. */
    close_to("the past's gradient", variants[v].name, other.dq, whole.dq, 70 * 64, 2e-6);
    for (int64_t i = 70 * 64; i < 90 * 64; i++) assert_true(whole.dq[i] == 0);
    for (int64_t i = 70 * 32; i < 90 * 32; i++) assert_true(whole.dk[i] == 0 && whole.dv[i] == 0);
  }
}

static void check_threads(void) {
  for (int v = 0; v < VARIANTS; v++)
    for (int64_t B = 1; B <= 2; B++) {
      make(&whole, &variants[v], B, 130, 4, 2, 16);
      threads = 1;
      run_both(&whole);
      for (threads = 1; threads <= 3; threads++) {
        static struct run first;
        make(&first, &variants[v], B, 130, 4, 2, 16);
        make(&other, &variants[v], B, 130, 4, 2, 16);
        run_both(&first);
        run_both(&other);
        same_results("threads", &other, &whole, 5e-6);
        assert_memory_equal(&first, &other, sizeof first); /* repeated, bit for bit */
      }
      threads = 1;
    }
}

static void on_backend(const char *name, const char *isa, void (*check)(void)) {
  if (!context_with_isa(name, isa, 2, &ctx)) return; /* a machine may lack the instruction set */
  assert_ok(ctx, wn_backend_of(ctx, &backend));
  check();
  wn_context_destroy(ctx);
}

static void everywhere(void (*check)(void)) {
  on_backend("ref", NULL, check);
  on_backend("cpu", ISA_OF_EIGHT, check);
  on_backend("cpu", "avx512", check);
}

static void test_zero_selection(void **state) {
  (void)state;
  everywhere(check_zero_selection);
}
static void test_chunks(void **state) {
  (void)state;
  everywhere(check_chunks);
}
static void test_documents(void **state) {
  (void)state;
  everywhere(check_documents);
}
static void test_one_token(void **state) {
  (void)state;
  everywhere(check_one_token);
}
static void test_groups(void **state) {
  (void)state;
  everywhere(check_groups);
}
static void test_causality(void **state) {
  (void)state;
  everywhere(check_causality);
}
static void test_threads(void **state) {
  (void)state;
  everywhere(check_threads);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_zero_selection), cmocka_unit_test(test_chunks), cmocka_unit_test(test_documents),
      cmocka_unit_test(test_one_token),      cmocka_unit_test(test_groups), cmocka_unit_test(test_causality),
      cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
