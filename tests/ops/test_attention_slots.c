/* Attention over cache slots in any order equals attention over keys in order, some of them evicted: for every
 * mechanism and pair, on ref and cpu, with positions shared by all heads or separate for each key-value head. Attention
 * sums equal the attention weights that unit values reveal. */
#include "mechanisms.h"

enum { B = 2, T = 70, H = 4, HKV = 2, D = 72 }; /* two tiles; or one, and all keys of a row */

struct slots {
  int64_t P, n; /* slots for the older keys and the rows */
  int32_t from[B * HKV][T], at[B * HKV][T], evicted_at[B * HKV][T];
  double k[B * T * HKV * D], v[B * T * HKV * D], sk[B * T * HKV * D], y[B * T * H * D], f[B * HKV * T],
      sums[B * HKV * T], numbers[WN_SCORE_MAPS_MAX][B * T * H];
};

static double number(const void *x, int64_t i, wn_dtype dtype) {
  return dtype == WN_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static void put(void *x, int64_t i, double v, wn_dtype dtype) {
  if (dtype == WN_F64)
    ((double *)x)[i] = v;
  else
    ((float *)x)[i] = (float)v;
}

/* Chooses the keys held before the first row, and their slots. */
static void choose(struct slots *s, const struct mech_bench *m, int64_t P, int64_t drop) {
  const int64_t older = m->s.Tk - m->s.Tq;
  s->P = P;
  s->n = m->s.Tk - drop;
  for (int64_t row = 0; row < B * P; row++) {
    int32_t order[T];
    for (int64_t j = 0; j < older; j++) order[j] = (int32_t)j;
    for (int64_t j = older - 1; j > 0; j--) {
      const uint64_t k = wn_random_below(m->s.seed, WN_STREAM_TEST, (uint64_t)row, (uint64_t)j, (uint64_t)j + 1);
      const int32_t x = order[j];
      order[j] = order[k], order[k] = x;
    }
    for (int64_t j = 0; j < s->n; j++) {
      const int64_t from = j < older - drop ? order[j] : j + drop;
      s->from[row][j] = s->at[row][j] = (int32_t)from;
    }
    for (int64_t j = 0; j < m->s.Tk; j++) s->evicted_at[row][j] = INT32_MAX;
    for (int64_t j = older - drop; j < older; j++) s->evicted_at[row][order[j]] = (int32_t)(j % 3 ? 0 : older);
    if (older > drop && m->s.Tq > 2) s->evicted_at[row][order[0]] = (int32_t)older + 2; /* evicted during the call */
  }
}

/* The call on keys in order. */
static struct wn_attention in_order(const struct mech_bench *m, const struct slots *s, int32_t *evicted_at) {
  struct wn_attention op = m->op;
  for (int64_t row = 0; row < B * s->P; row++)
    for (int64_t j = 0; j < m->s.Tk; j++) evicted_at[row * m->s.Tk + j] = s->evicted_at[row][j];
  op.slots.groups = s->P;
  op.slots.evicted_at = evicted_at;
  op.sel.mem = false;
  op.sel.F = NULL;
  op.exclusive.dot = op.gate.ungated = NULL;
  op.threshold.cut = NULL;
  return op;
}

static void gather(const struct mech_bench *m, const struct slots *s, const void *from, struct wn_stride stride,
                   int64_t heads, int64_t width, double *to) {
  for (int64_t b = 0; b < B; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t j = 0; j < s->n; j++)
        for (int64_t d = 0; d < width; d++)
          put(to, ((b * heads + h) * T + j) * width + d,
              number(from, b * stride.b + s->from[b * s->P + (s->P > 1 ? h : 0)][j] * stride.t + h * stride.h + d,
                     m->dtype),
              m->dtype);
}

/* The same call on slots; tables are [B,P,T] each. */
static struct wn_attention in_slots(const struct mech_bench *m, struct slots *s, int32_t *at, int32_t *evicted_at) {
  struct wn_attention op = m->op;
  const int64_t G = wn_selection_groups(&op);
  op.Tk = s->n;
  op.k = s->k, op.v = s->v, op.y = s->y, op.lse = NULL;
  op.s_k = op.s_v = (struct wn_stride){HKV * T * D, D, T * D};
  op.s_y = (struct wn_stride){m->s.Tq * H * D, H * D, D};
  gather(m, s, m->op.k, m->op.s_k, HKV, D, s->k);
  gather(m, s, m->op.v, m->op.s_v, HKV, D, s->v);
  for (int64_t i = 0; i < op.maps; i++) {
    struct wn_score_map *t = &op.map[i];
    if (!t->key) continue;
    gather(m, s, t->key, t->s_key, HKV, t->gates, s->numbers[i]);
    t->key = s->numbers[i], t->s_key = (struct wn_stride){HKV * T * t->gates, t->gates, T * t->gates};
  }
  if (op.sel.on && op.sel.bilinear) {
    gather(m, s, m->op.sel.sk, m->op.sel.s_sk, G, D, s->sk);
    op.sel.sk = s->sk;
    op.sel.s_sk = (struct wn_stride){G * T * D, D, T * D};
  }
  for (int64_t b = 0; b < B && op.sel.on; b++)
    for (int64_t g = 0; g < G; g++)
      for (int64_t j = 0; j < s->n; j++)
        put(s->f, (b * G + g) * T + j,
            number(m->op.sel.f_in, (b * G + g) * m->s.Tk + s->from[b * s->P + (s->P > 1 ? g : 0)][j], m->dtype),
            m->dtype);
  op.sel.f_in = op.sel.f_out = op.sel.on ? s->f : NULL;
  op.sel.f_stride = T;
  op.sel.mem = false;
  op.sel.F = NULL;
  op.exclusive.dot = op.gate.ungated = NULL;
  op.threshold.cut = NULL;
  for (int64_t row = 0; row < B * s->P; row++)
    for (int64_t j = 0; j < s->n; j++) {
      at[row * T + j] = s->at[row][j];
      evicted_at[row * T + j] = s->evicted_at[row][s->from[row][j]];
    }
  op.slots.groups = s->P;
  op.slots.stride = T;
  op.slots.at = at;
  op.slots.evicted_at = evicted_at;
  return op;
}

static void same(const char *what, const struct mech_bench *m, double found, double expected, double tolerance) {
  if (!(fabs(found - expected) <= tolerance * (1 + fabs(expected))))
    fail_msg("%s: %s is %.9g, expected %.9g", mech_name(m), what, found, expected);
}

/* With unit values the rows' outputs are the attention weights, whose sums are the attention sums. */
static void check_sums(struct mech_place *place, const struct mech_bench *m, struct slots *s, struct wn_attention op,
                       double tolerance) {
  double zero[HKV * 8 * D] = {0};
  assert_true(op.sinks.n <= 8);
  op.sinks.v = zero;
  op.exclusive.on = op.gate.on = false;
  op.slots.sums = s->sums;
  for (int64_t i = 0; i < B * HKV * T; i++) put(s->sums, i, -7, m->dtype);
  for (int64_t i = 0; i < B * HKV * T * D; i++) put(s->v, i, i % D == i / D % T, m->dtype);
  assert_ok(place->ctx, mech_op(place, m, &op, false));
  for (int64_t row = 0; row < B * s->P; row++)
    for (int64_t j = 0; j < T; j++) {
      double sum = 0;
      for (int64_t r = 0; r < m->s.Tq; r++)
        for (int64_t h = 0; h < H / s->P; h++)
          sum += number(s->y, row / s->P * op.s_y.b + r * op.s_y.t + (row % s->P * (H / s->P) + h) * D + j, m->dtype);
      same("sums", m, number(s->sums, row * T + j, m->dtype), j < s->n ? sum : -7, tolerance);
    }
}

static void check(struct mech_place *reference, struct mech_place *place, const struct mech_case *c, int64_t Tq,
                  int64_t P, uint64_t seed) {
  struct mech_setup setup = {.c = c,
                             .B = B,
                             .Tq = Tq,
                             .Tk = T,
                             .H = H,
                             .Hkv = HKV,
                             .D = D,
                             .f_in = true,
                             .seed = seed,
                             .heads_first = seed % 2};
  const bool exact = !strcmp(place->backend->name, "ref");
  const double tolerance = exact ? 1e-12 : 1e-5;
  mech_settle(reference, &setup);
  struct mech_bench full, m;
  static struct slots s;
  int32_t evicted_at[B * HKV * T], at[B * HKV * T], held[B * HKV * T];
  mech_make(&full, &setup, WN_F64);
  mech_make(&m, &setup, exact ? WN_F64 : WN_F32);
  choose(&s, &full, P, seed % 3 == 0 ? 0 : 6);
  struct wn_attention whole = in_order(&full, &s, evicted_at), op = in_slots(&m, &s, at, held);
  assert_ok(reference->ctx, mech_op(reference, &full, &whole, false));
  if (!exact && Tq > 1 && P > 1) {
    assert_int_equal(mech_op(place, &m, &op, false), WN_ERR_UNSUPPORTED);
  } else {
    assert_ok(place->ctx, mech_op(place, &m, &op, false));
    for (int64_t b = 0; b < B; b++)
      for (int64_t r = 0; r < Tq; r++)
        for (int64_t h = 0; h < H; h++)
          for (int64_t d = 0; d < D; d++)
            same("y", &m, number(s.y, b * op.s_y.b + r * op.s_y.t + h * D + d, m.dtype),
                 ((const double *)whole.y)[b * whole.s_y.b + r * whole.s_y.t + h * whole.s_y.h + d], tolerance);
    const int64_t G = wn_selection_groups(&op);
    for (int64_t n = 0; n < B * G && op.sel.on; n++)
      for (int64_t j = 0; j < s.n; j++)
        same("F", &m, number(s.f, n * T + j, m.dtype),
             ((const double *)whole.sel.f_out)[n * T + s.from[P > 1 ? n : n / G * P][j]], tolerance);
    if (exact || Tq == 1) check_sums(place, &m, &s, in_slots(&m, &s, at, held), tolerance);
  }
  mech_clear(&full);
  mech_clear(&m);
}

static void check_all(const char *backend) {
  struct mech_place reference, place;
  mech_open(&reference, "ref", NULL);
  mech_open(&place, backend, NULL);
  mech_list(false);
  for (int i = 0; i < mech_count; i++) {
    const wn_attention_config *c = &mech_cases[i].config;
    const bool apart = !c->selective.enabled || c->selective.per_kv_head;
    const uint64_t seed = (uint64_t)i + 1;
    check(&reference, &place, &mech_cases[i], 1, 1, seed);
    check(&reference, &place, &mech_cases[i], 5, 1, seed);
    if (apart) check(&reference, &place, &mech_cases[i], 1, HKV, seed);
    if (apart && i % 3 == 0) check(&reference, &place, &mech_cases[i], 4, HKV, seed);
  }
  mech_close(&reference);
  mech_close(&place);
}

static void slots_on_ref(void **state) {
  (void)state;
  check_all("ref");
}
static void slots_on_cpu(void **state) {
  (void)state;
  check_all("cpu");
}

/* Many keys are processed in parts. */
static void weights_of_many_keys(void **state) {
  (void)state;
  enum { MANY = 700 };
  static const char *const texts[] = {"{}", "{\"selective\":{},\"sinks\":2}", "{\"threshold\":{\"tau\":0.8}}"};
  struct mech_place reference, place;
  mech_open(&reference, "ref", NULL);
  mech_open(&place, "cpu", NULL);
  place.threads = 3;
  for (int i = 0; i < 3; i++) {
    struct mech_case c;
    mech_merge(&c, "{}", texts[i]);
    struct mech_setup setup = {.c = &c, .B = 1, .Tq = 1, .Tk = MANY, .H = 4, .Hkv = 2, .D = 8, .seed = 4};
    mech_settle(&reference, &setup);
    for (int64_t P = 1; P <= 2; P++) {
      struct mech_bench x, y;
      double expected[2 * MANY];
      float found[2 * MANY];
      mech_make(&x, &setup, WN_F64);
      mech_make(&y, &setup, WN_F32);
      x.op.slots.groups = y.op.slots.groups = P;
      x.op.slots.sums = expected, y.op.slots.sums = found;
      assert_ok(reference.ctx, mech_op(&reference, &x, &x.op, false));
      assert_ok(place.ctx, mech_op(&place, &y, &y.op, false));
      for (int64_t j = 0; j < P * MANY; j++) same("sums", &x, (double)found[j], expected[j], 1e-5);
      mech_clear(&x);
      mech_clear(&y);
    }
  }
  mech_close(&reference);
  mech_close(&place);
}

static void wrong_positions_are_refused(void **state) {
  (void)state;
  struct mech_place place;
  mech_open(&place, "cpu", NULL);
  mech_list(false);
  struct mech_setup setup = {
      .c = &mech_cases[0], .B = B, .Tq = 2, .Tk = T, .H = H, .Hkv = HKV, .D = D, .f_in = true, .seed = 1};
  struct mech_bench m;
  static struct slots s;
  int32_t at[B * HKV * T], evicted_at[B * HKV * T], starts[B * T] = {0};
  mech_make(&m, &setup, WN_F32);
  choose(&s, &m, 1, 6);
  struct wn_attention op = in_slots(&m, &s, at, evicted_at);
#define REFUSED(status, part)                                                                                          \
  assert_refused(place.ctx, mech_op(&place, &m, &op, false), status, part);                                            \
  op = in_slots(&m, &s, at, evicted_at)
  at[3] = -1;
  REFUSED(WN_ERR_ARGUMENT, "slots.at[3] is -1");
  at[3] = at[s.n - 2];
  REFUSED(WN_ERR_ARGUMENT, "before the first row's");
  at[T + s.n - 1] = at[T + s.n - 2];
  REFUSED(WN_ERR_ARGUMENT, "in order");
  op.doc_start = starts;
  REFUSED(WN_ERR_ARGUMENT, "doc_start");
  op.slots.stride = s.n - 1;
  REFUSED(WN_ERR_SHAPE, "slots.stride");
  op.slots.groups = 3;
  REFUSED(WN_ERR_SHAPE, "3 groups");
  op.relative.P = 5, op.relative.p = s.k;
  REFUSED(WN_ERR_SHAPE, "relative positions");
  op.dy = op.y, op.lse = s.sums;
  assert_refused(place.ctx, mech_op(&place, &m, &op, true), WN_ERR_UNSUPPORTED, "in backward");
  mech_clear(&m);
  mech_close(&place);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slots_on_ref),
      cmocka_unit_test(slots_on_cpu),
      cmocka_unit_test(weights_of_many_keys),
      cmocka_unit_test(wrong_positions_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
