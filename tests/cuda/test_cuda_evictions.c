/* Evictions of whole sequences and of pieces on the emulated device. Whole sequences are compared with the rule carried
 * out token by token (kv/simulated.h), for every policy and option; pieces with ref, with the tokens left and the notes
 * carried on. Several chunks of rows, half floats. Every order of threads gives the same. */
#include "kv/simulated.h"

#include "backends/cuda/cuda.h"
#include "cuda/emulate_api.h"
#include "ops/evictions.h"
#include "policies.h"

static void whole(wn_policy policy, uint64_t from, uint64_t to, uint64_t by) {
  const struct place device = {wn_backend_cuda_table(), WN_F32, 1};
  int64_t evictions = 0;
  for (uint64_t seed = from; seed < to; seed += by) {
    wn_emulate_seed(seed);
    evictions += check_at(&device, 1, policy, seed);
    assert_null(wn_emulate_error());
  }
  assert_true(evictions > 200);
}
static void test_selective(void **state) {
  (void)state;
  whole(WN_POLICY_SELECTIVE, 0, 24, 1);
}
static void test_positions(void **state) {
  (void)state;
  whole(WN_POLICY_WINDOW, 0, 12, 1);
  whole(WN_POLICY_STREAMING, 0, 16, 1);
  whole(WN_POLICY_RANDOM, 0, 12, 1);
}
static void test_sums(void **state) {
  (void)state;
  whole(WN_POLICY_H2O, 0, 14, 1);
  whole(WN_POLICY_TOVA, 0, 14, 1);
  whole(WN_POLICY_SNAPKV, 0, 14, 1);
}

static void test_keys(void **state) {
  (void)state;
  whole(WN_POLICY_KNORM, 0, 14, 1);
  whole(WN_POLICY_KEYDIFF, 0, 14, 1);
}

/* ---- pieces ---- */

enum { OLDER_MAX = 60, ROWS_MAX = 24 };

struct piece {
  struct call c;
  int64_t P, notes, stride, K;
  int32_t *at, *evicted_at, *left;
  float *note, *f, *sinks, *spans;
  uint16_t *half;
};

/* Rules and terms that the whole sequences above lack, and keys in half floats. */
static void piece_terms(struct piece *p, uint64_t seed) {
  struct wn_attention *a = &p->c.a;
  if (seed % 5 == 0) {
    a->sinks.n = 3;
    a->sinks.k = p->sinks = normal(WN_F32, a->Hkv * 3 * a->D, seed, 30);
    a->sinks.v = p->sinks;
  }
  if (seed % 5 == 1) a->strided = 3;
  if (seed % 5 == 2) a->root.on = true, a->root.buffer = 2, a->root.density = 0.7;
  if (seed % 5 == 3) {
    a->span.on = true, a->span.limit = 40, a->span.ramp = 8;
    p->spans = malloc((size_t)a->H * sizeof *p->spans);
    for (int64_t h = 0; h < a->H; h++) p->spans[h] = (float)(h + 1) / (float)(a->H + 1);
    a->span.z = p->spans, a->span.s_z.h = 1;
  }
  if (seed % 5 != 4) return;
  const int64_t n = a->B * a->s_k.b;
  p->half = malloc((size_t)n * sizeof *p->half);
  for (int64_t i = 0; i < n; i++) p->half[i] = (uint16_t)(0x3000 + pick(seed, 0x0c00) + pick(seed, 2) * 0x8000);
  a->k_type = a->v_type = WN_GGUF_F16, a->k = a->v = p->half;
}

/* The rows' own keys are the call's last ones. Those before are held, at positions with gaps. */
static void piece_make(struct piece *p, const wn_budgets *x, uint64_t seed, bool selective) {
  call_make(&p->c, WN_F32, seed, selective);
  struct wn_attention *a = &p->c.a;
  a->doc_start = NULL;
  a->Tk = a->Tk < OLDER_MAX + ROWS_MAX ? a->Tk : OLDER_MAX + ROWS_MAX;
  a->Tq = 1 + pick(seed, a->Tk < ROWS_MAX ? a->Tk : ROWS_MAX);
  const int64_t older = a->Tk - a->Tq, G = a->sel.on ? wn_selection_groups(a) : 0;
  p->K = (older > 0 ? older : 1) + pick(seed, 4);
  p->P = wn_policy_groups(x, a->Hkv, G), p->notes = wn_policy_notes(x), p->stride = a->Tk + 3;
  const int64_t slots = a->B * p->P * p->stride, left = p->K < a->Tk ? p->K : a->Tk;
  p->at = malloc((size_t)slots * sizeof *p->at), p->evicted_at = malloc((size_t)slots * sizeof *p->evicted_at);
  p->left = malloc((size_t)(a->B * p->P * left) * sizeof *p->left);
  p->note = calloc((size_t)(slots * (p->notes > 0 ? p->notes : 1)), sizeof *p->note);
  for (int64_t row = 0; row < a->B * p->P; row++)
    for (int64_t j = 0, at = 0; j < a->Tk; j++) {
      p->at[row * p->stride + j] = (int32_t)at;
      at += j < older && pick(seed, 3) == 0 ? 2 : 1;
    }
  /* Every group has the same positions. */
  for (int64_t row = 1; row < a->B * p->P; row++) memcpy(p->at + row * p->stride, p->at, (size_t)a->Tk * sizeof *p->at);
  for (int64_t i = 0; i < slots * p->notes; i++)
    if (i % p->stride < older) p->note[i] = (float)wn_random_uniform(seed, WN_STREAM_TEST, 20, (uint64_t)i);
  a->slots.at = p->at, a->slots.groups = p->P, a->slots.stride = p->stride;
  piece_terms(p, seed);
  if (!selective) return;
  p->f = calloc((size_t)(a->B * G * p->stride), sizeof *p->f);
  for (int64_t i = 0; i < a->B * G * p->stride; i++)
    if (i % p->stride < older) p->f[i] = (float)wn_random_uniform(seed, WN_STREAM_TEST, 21, (uint64_t)i);
  a->sel.f_in = p->f, a->sel.f_stride = p->stride;
}
static void piece_clear(struct piece *p) {
  call_clear(&p->c);
  free(p->at), free(p->evicted_at), free(p->left), free(p->note), free(p->f), free(p->sinks), free(p->spans),
      free(p->half);
}

static void piece_find(const struct wn_backend *backend, const wn_budgets *x, struct piece *p) {
  const struct wn_evictions_piece piece = {.budgets = x,
                                           .layer = 0,
                                           .K = p->K,
                                           .first_group = 3,
                                           .a = &p->c.a,
                                           .notes = p->notes > 0 ? p->note : NULL,
                                           .evicted_at = p->evicted_at,
                                           .left = p->left};
  struct wn_exec exec = {.ctx = ctx, .backend = backend, .threads = 1, .dtype = WN_F32};
  exec.scratch_bytes = wn_evictions_piece_scratch(&exec, &piece);
  exec.scratch = aligned_alloc(WN_ALIGN, (exec.scratch_bytes / WN_ALIGN + 1) * WN_ALIGN);
  memset(exec.scratch, 0xff, exec.scratch_bytes);
  assert_ok(ctx, wn_evictions_piece_find(&exec, &piece));
  free(exec.scratch);
}

static void piece_check(wn_policy policy, uint64_t seed, int *gone) {
  const bool selective = policy == WN_POLICY_SELECTIVE || seed % 2;
  int64_t tokens = 1;
  wn_budgets x;
  budgets_init(&x);
  x.policy = policy, x.layers = 1, x.tokens = &tokens, x.seed = seed, x.sinks = (int64_t)(seed % 4), x.recent = 0.25;
  x.snapkv.rows = 5, x.snapkv.neighbours = (int64_t)(seed % 4), x.snapkv.pool = seed % 3 ? WN_POOL_MAX : WN_POOL_MEAN;
  struct piece want = {0}, got = {0};
  piece_make(&want, &x, seed, selective);
  draws = 0;
  piece_make(&got, &x, seed, selective);
  piece_find(wn_backend_ref(), &x, &want);
  wn_emulate_seed(seed);
  piece_find(wn_backend_cuda_table(), &x, &got);
  assert_null(wn_emulate_error());
  const struct wn_attention *a = &want.c.a;
  const int64_t left = want.K < a->Tk ? want.K : a->Tk;
  for (int64_t row = 0; row < a->B * want.P; row++) {
    const int32_t *evicted_at = want.evicted_at + row * want.stride;
    for (int64_t j = 0; j < a->Tk; j++) {
      assert_int_equal(got.evicted_at[row * want.stride + j], evicted_at[j]);
      *gone += evicted_at[j] != WN_EVICTED_NEVER;
      for (int64_t i = 0; i < want.notes && evicted_at[j] == WN_EVICTED_NEVER; i++) {
        const int64_t at = (row * want.notes + i) * want.stride + j;
        assert_true(fabsf(got.note[at] - want.note[at]) <= 2e-5f * (1 + fabsf(want.note[at])));
      }
    }
    for (int64_t n = 0, j = 0; n < left; n++, j++) {
      while (evicted_at[j] != WN_EVICTED_NEVER) j++;
      assert_int_equal(want.left[row * left + n], j);
      assert_int_equal(got.left[row * left + n], j);
    }
  }
  piece_clear(&want), piece_clear(&got);
}
static void test_pieces(void **state) {
  (void)state;
  for (int policy = 0; policy < WN_POLICY_COUNT; policy++) {
    int gone = 0;
    if (policy == WN_POLICY_GATES) continue; /* which asks on the host */
    for (uint64_t seed = 0; seed < 10; seed++) piece_check((wn_policy)policy, seed, &gone);
    assert_true(gone > 50);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_selective), cmocka_unit_test(test_positions),
                                     cmocka_unit_test(test_sums), cmocka_unit_test(test_keys),
                                     cmocka_unit_test(test_pieces)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
