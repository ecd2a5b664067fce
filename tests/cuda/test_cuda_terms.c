/* Every term of attention on the CUDA backend, emulated, under the tolerance rule (attention_law.h): each mechanism's
 * cases alone, and random pairs of mechanisms with random shapes (partial tiles, single rows, rows after cached keys,
 * packed documents, evictions, dropout, wide heads); in float and bf16, forward and backward, in chunks of rows;
 * encoder rows without a causal mask. Forward only: attention sums, half floats, cache positions. Every order of
 * threads gives the same bits. */
#include "cuda/attention_orders.h"
#include "own_term.h"
#include "tensor/f16.h"

enum { WINDOW = 64 };

/* cuda/own_bias.cc; NULL on a device */
const void *own_bias_device(void);

static int setup_windows(void **state) {
  window_rows = WINDOW;
  own_bias_kind.kernels = own_bias_device();
  if (own_bias_kind.kernels) wn_mechanism_of_test = &own_term;
  return setup(state);
}

/* ---- forward and backward ---- */

static void once(const struct mech_setup *s, uint64_t order, struct mech_bench *m) {
  mech_make(m, s, WN_F32);
  use_zeros(&m->op);
  wn_emulate_seed(order);
  mech_both(&emulated, m);
  assert_null(wn_emulate_error());
}
static uint64_t drawn;
static int64_t draw(int64_t n) {
  return (int64_t)wn_random_below(77, WN_STREAM_TEST, 40, drawn++, (uint64_t)n);
}
/* 1 to 3 tiles of rows, mostly few rows. */
static struct mech_setup drawn_shape(bool bf16) {
  static const int64_t heads[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}}, widths[] = {5, 16, 20, 33, 64, 70};
  const int64_t *h = heads[draw(4)];
  struct mech_setup s = {.B = 1 + (draw(4) == 0), .H = h[0], .Hkv = h[1], .D = widths[draw(6)], .bf16 = bf16};
  s.Tk = draw(6) ? 1 + draw(20) : 62 + draw(12);
  s.Tq = draw(3) ? s.Tk : draw(2) ? 1 : 1 + draw(s.Tk);
  s.heads_first = draw(2), s.control = draw(2), s.f_in = draw(2);
  s.documents = draw(4) == 0;
  s.evicts = draw(3) ? 0 : 1 + (int)draw(2);
  if (s.Tq < s.Tk && draw(2)) s.dk_from = s.Tk - s.Tq;
  if (draw(4) == 0) s.dropout = 0.2;
  s.seed = drawn;
  return s;
}

/* Every case of a mechanism alone, then pairs. */
static void check_drawn(bool bf16, int pairs) {
  mech_list(true);
  for (int n = 0; n < mech_alone + pairs; n++) {
    struct mech_setup s = drawn_shape(bf16);
    s.c = &mech_cases[n < mech_alone ? n : mech_alone + draw(mech_count - mech_alone)];
    if (s.c->config.bidirectional) { /* no causal mask, and nothing that looks back */
      s.documents = s.f_in = s.control = false, s.evicts = 0, s.dk_from = 0;
      s.padded = draw(2);
    }
    check_orders(&s, n % 4 && wn_emulated() ? 1 : 3);
  }
}
static void test_floats(void **state) {
  (void)state;
  check_drawn(false, 30);
}
static void test_bf16(void **state) {
  (void)state;
  check_drawn(true, 30);
}

/* Rows without a causal mask that select, and keys of another sequence. */
static void test_open(void **state) {
  (void)state;
  mech_list_open();
  for (int n = 0; n < mech_count; n++) {
    struct mech_setup s = drawn_shape(n % 3 == 2);
    s.c = &mech_cases[n];
    s.Tq = s.Tk, s.documents = s.f_in = s.control = false, s.evicts = 0, s.dk_from = 0;
    s.padded = n % 2;
    check_orders(&s, 2);
  }
}

/* Heads wider than the fused kernels support use kernels with stored attention weights, which have their own terms. */
static void test_wide(void **state) {
  (void)state;
  static const char *const cases[] = {"{}",
                                      "{\"selective\":{}}",
                                      "{\"softcap\":{\"cap\":4}}",
                                      "{\"sinks\":2}",
                                      "{\"gate\":\"head\",\"exclusive\":{\"gate\":true}}",
                                      "{\"alibi\":true,\"softcap\":{\"cap\":3}}",
                                      "{\"sqrt\":{\"buffer\":3,\"density\":0.7}}",
                                      "{\"gate\":\"elementwise\"}"};
  for (int n = 0; n < 10; n++) {
    struct mech_case c = {.number = n};
    mech_merge(&c, "{}", cases[n % 8]);
    struct mech_setup s = {.c = &c, .B = 1, .Tq = 18, .Tk = 21, .H = 2, .Hkv = 1, .D = n < 2 ? 256 : 136};
    s.bf16 = n % 2, s.seed = (uint64_t)n, s.dropout = n % 3 ? 0 : 0.2;
    const uint64_t before = wn_emulate_launches_in("stored_run.cuh");
    check_orders(&s, wn_emulated() ? 1 : 2);
    assert_true(!wn_emulated() || wn_emulate_launches_in("stored_run.cuh") > before);
  }
}

/* Attention weights in chunks of 64 rows. */
static void test_windows(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"{\"sinks\":3}", "{\"selective\":{\"strength\":\"learned\",\"mem\":{}}}"},
      {"{\"relative\":true}", "{\"selective\":{\"bilinear\":true}}"},
      {"{\"buckets\":{\"count\":8,\"farthest\":40}}", "{\"selective\":{}}"},
      {"{\"softcap\":{\"cap\":2}}", "{\"exclusive\":{\"gate\":true}}"},
      {"{\"forget\":true,\"fade\":true}", "{\"selective\":{},\"buckets\":{\"count\":8,\"farthest\":40}}"},
      {"{\"forget\":{\"per_query_head\":true},\"softcap\":{\"cap\":2}}", "{\"write\":{\"window\":20}}"},
      {"{\"own\":true}", "{\"selective\":{}}"},
  };
  emulated.backend = &windows;
  for (int n = 0; n < (wn_mechanism_of_test ? 14 : 12); n++) {
    struct mech_case c = {.number = n};
    mech_merge(&c, cases[n / 2][0], cases[n / 2][1]);
    struct mech_setup s = {.c = &c, .B = 2, .Tq = 150, .Tk = 167, .H = 2, .Hkv = 2, .D = 20, .f_in = true};
    s.bf16 = n % 2, s.seed = (uint64_t)n, s.dk_from = 9;
    check_orders(&s, wn_emulated() ? 1 : 2);
  }
  emulated.backend = wn_backend_cuda_table();
}

/* ---- forward only: attention sums, half floats, slots in any order ---- */

enum { TK = 45, SLOTS = 2 * 2 * TK };
static void expect_near(const struct mech_bench *m, const char *name, const float *got, const float *want, int64_t n) {
  double size = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!(fabsf(got[i] - want[i]) <= 1e-5 * fmaxf(1, fabsf(want[i]))))
      fail_msg("%s: %s[%lld] is %g, expected %g", mech_name(m), name, (long long)i, (double)got[i], (double)want[i]);
    size += fabs((double)want[i]);
  }
  assert_true(size > 0.01 * (double)n);
}
static void forward_case(const char *one, const char *other, int64_t Tq, int evicts, bool slots, bool half) {
  struct mech_case c = {.number = 1};
  mech_merge(&c, one, other);
  struct mech_setup s = {.c = &c, .B = 2, .Tq = Tq, .Tk = TK, .H = 4, .Hkv = 2, .D = 20, .evicts = evicts};
  struct mech_bench m[2];
  enum { HALVES = 2 * TK * (2 * 20 + 3), DISTANCES = 2 * TK }; /* more distances than there are keys */
  int32_t *at = malloc(SLOTS * sizeof *at), *evicted_at = malloc(SLOTS * sizeof *evicted_at);
  float *sums[2], *lse[2], *p = malloc(DISTANCES * 20 * sizeof *p);
  uint16_t *halves[2];
  for (int i = 0; i < 2; i++) {
    sums[i] = malloc(SLOTS * sizeof(float)), lse[i] = malloc(2 * 4 * TK * sizeof(float));
    halves[i] = malloc(HALVES * sizeof(uint16_t));
  }
  for (int n = 0; n < DISTANCES * 20; n++) p[n] = (float)(mech_uniform(3, 5, (uint64_t)n) - 0.5);
  s.f_in = true, s.seed = (uint64_t)(Tq + 3 * evicts + 7 * slots);
  for (int i = 0; i < 2; i++) {
    mech_make(&m[i], &s, WN_F32);
    struct wn_attention *op = &m[i].op;
    op->sel.F = NULL, op->threshold.cut = NULL;
    if (op->relative.P) op->relative.P = DISTANCES, op->relative.p = p;
    const int64_t P = wn_slot_groups(op), own = TK - Tq;
    for (int64_t n = 0; slots && n < s.B * P; n++)
      for (int64_t j = 0; j < TK; j++) { /* 29 is coprime to every number of older slots */
        at[n * TK + j] = (int32_t)(j < own ? 2 * (j * 29 % own) + n % 2 : 2 * j);
        if (evicts) evicted_at[n * TK + j] = (int32_t)(at[n * TK + j] + (j % 3 ? 3 * TK : 5 + j));
      }
    if (slots) op->slots.at = at, op->dk_from = 0;
    if (slots && evicts) op->slots.evicted_at = evicted_at;
    op->slots.sums = sums[i], op->lse = lse[i];
    for (int n = 0; n < SLOTS; n++) sums[i][n] = -5;
    const int arrays[] = {mech_find(&m[i], "k"), mech_find(&m[i], "v")};
    for (int n = 0; half && n < 2; n++) { /* numbers that are exact in half floats */
      const struct mech_array *a = &m[i].a[arrays[n]];
      float *x = a->data;
      assert_true(a->count <= HALVES);
      for (int64_t k = 0; k < a->count; k++) x[k] = ldexpf((float)(int)(x[k] * 512), -9);
      wn_f16_from_f32(a->count, x, halves[n]);
    }
    if (half && i) op->k_type = op->v_type = WN_GGUF_F16, op->k = halves[0], op->v = halves[1];
    wn_emulate_seed((uint64_t)Tq);
    assert_ok(reference.ctx, mech_op(i ? &emulated : &reference, &m[i], op, false));
    assert_null(wn_emulate_error());
  }
  const int64_t P = wn_slot_groups(&m[0].op);
  expect_near(&m[1], "sums", sums[1], sums[0], s.B * P * TK);
  expect_near(&m[1], "lse", lse[1], lse[0], s.B * s.H * Tq);
  const int y = mech_find(&m[0], "y");
  expect_near(&m[1], "y", m[1].a[y].data, m[0].a[y].data, m[0].a[y].count);
  for (int i = 0; i < 2; i++) {
    free(sums[i]), free(lse[i]), free(halves[i]);
    mech_clear(&m[i]);
  }
  free(at), free(evicted_at), free(p);
}
static void test_forward(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"{}", "{}"},
      {"{\"selective\":{\"per_kv_head\":true}}", "{\"softcap\":{\"cap\":3}}"},
      {"{\"sinks\":2}", "{\"relative\":true}"},
      {"{\"alibi\":true}", "{\"window\":29}"},
      {"{\"buckets\":{\"count\":8,\"farthest\":30}}", "{\"gate\":\"head\"}"},
      {"{\"forget\":true}", "{\"write\":{\"window\":8}}"},
      {"{\"forget\":{\"per_query_head\":true},\"alibi\":true}", "{\"fade\":true,\"selective\":{\"per_kv_head\":true}}"},
      {"{\"threshold\":{\"tau\":0.8}}", "{\"exclusive\":true}"},
  };
  for (int n = 0; n < 8; n++)
    for (int how = 0; how < 4; how++) { /* one row or several; slots for all heads or each */
      const bool half = how % 2 == n % 2 && n < 7;
      forward_case(cases[n][0], cases[n][1], how % 2 ? 1 : 16, 1 + how / 2, how > 0, half);
    }
  emulated.backend = &windows;
  for (int n = 0; n < 3; n++) forward_case(cases[n][0], cases[n][1], TK, 0, false, false);
  emulated.backend = wn_backend_cuda_table();
}

static void test_refused(void **state) {
  (void)state;
  static const struct wn_score_kind unknown = {.name = "a map of the test"};
  struct mech_case c = {.number = 1};
  mech_merge(&c, "{}", "{}");
  struct mech_setup s = {.c = &c, .B = 1, .Tq = 5, .Tk = 5, .H = 2, .Hkv = 2, .D = 8};
  struct mech_bench m;
  mech_make(&m, &s, WN_F32);
  struct wn_attention looks = m.op, maps = m.op, sums = m.op;
  const double tau = 0.5;
  int32_t count[10];
  float of_keys[5];
  looks.look.n = 1, looks.look.tau = &tau, looks.look.count = count;
  assert_refused(reference.ctx, mech_op(&emulated, &m, &looks, false), WN_ERR_UNSUPPORTED,
                 "backend cuda does not serve the term \"look at the weights\"");
  maps.map[maps.maps++].kind = &unknown;
  assert_refused(reference.ctx, mech_op(&emulated, &m, &maps, false), WN_ERR_UNSUPPORTED,
                 "backend cuda does not serve the term \"a map of the test\"");
  sums.slots.sums = of_keys;
  assert_refused(reference.ctx, mech_op(&emulated, &m, &sums, true), WN_ERR_UNSUPPORTED,
                 "backend cuda does not serve the term \"attention sums\" in backward");
  mech_clear(&m);
}

/* Keys at the ends of spans' ramps, with stored attention weights. */
static void test_span_edges(void **state) {
  (void)state;
  mech_list_edges();
  for (int n = 0; n < mech_count; n++)
    for (int bf16 = 0; bf16 < 2; bf16++) {
      struct mech_setup s = {.c = &mech_cases[n], .B = 1, .Tq = 45, .Tk = 67, .H = 4, .Hkv = 2, .D = 20};
      s.bf16 = bf16, s.seed = (uint64_t)n, s.edges = true, s.documents = n % 2, s.control = n % 3;
      if (!s.c->config.threshold.enabled && !s.c->config.relative.enabled) s.D = 136;
      check_orders(&s, 1);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_floats),     cmocka_unit_test(test_bf16), cmocka_unit_test(test_windows),
      cmocka_unit_test(test_span_edges), cmocka_unit_test(test_open), cmocka_unit_test(test_forward),
      cmocka_unit_test(test_refused),    cmocka_unit_test(test_wide),
  };
  return cmocka_run_group_tests(tests, setup_windows, teardown);
}
