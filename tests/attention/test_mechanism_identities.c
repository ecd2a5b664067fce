/* Identities that every mechanism and every pair of mechanisms must satisfy, whatever computes it. Neutral settings
 * change nothing: a full span, a threshold of 1, a gate of 0, a window over everything, evictions that never come.
 * Exclusive outputs are orthogonal to the row's own value, and zero where a row sees only itself. Chunked prefill and
 * single-token decoding give the same rows as one call, and the gradients of pieces add up to those of the whole.
 * Packed documents are separate documents; grouped heads are repeated keys. In double on ref, in float on the cpu
 * backend. */
#include "isa.h"
#include "mechanisms.h"

enum { T = 67 };

static struct mech_place place, reference; /* the backend under test; the one that settles thresholds */
static wn_dtype dtype;
static double tolerance;

static struct mech_setup sized(const struct mech_case *c, int i) {
  struct mech_setup s = {.c = c, .B = 1, .Tq = T, .Tk = T, .H = 2, .Hkv = 1, .D = 16, .seed = (uint64_t)i};
  if (i % 2) s.H = 4, s.Hkv = 2;
  s.heads_first = i / 2 % 2;
  s.control = i % 3 == 1;
  return s;
}

/* Errors are measured against the array's largest element, or against the inputs where the array is all but zero. */
static void same_array(const char *what, const struct mech_bench *got, const struct mech_bench *want, const char *name,
                       double limit) {
  const int x = mech_find(got, name), y = mech_find(want, name);
  if (x < 0 || y < 0) return;
  assert_int_equal(got->a[x].count, want->a[y].count);
  double largest = 0.1;
  for (int64_t i = 0; i < want->a[y].count; i++)
    if (mech_counts(want, y, i) && isfinite(mech_get(want, y, i))) largest = fmax(largest, fabs(mech_get(want, y, i)));
  for (int64_t i = 0; i < want->a[y].count; i++) {
    const double g = mech_get(got, x, i), w = mech_get(want, y, i);
    if (mech_counts(want, y, i) && g != w && !(fabs(g - w) <= (got->a[x].whole ? 0 : limit * largest)))
      fail_msg("%s on %s %s: %s: %s[%lld] is %.9g, expected %.9g", what, place.backend->name,
               wn_isa_name(place.ctx->isa), mech_name(got), name, (long long)i, g, w);
  }
}

static void same_results(const char *what, const struct mech_bench *got, const struct mech_bench *want,
                         bool gradients) {
  for (int i = 0; i < want->n; i++) {
    const struct mech_array *a = &want->a[i];
    if (a->role == MECH_OUTPUT && strcmp(a->name, "F") != 0) same_array(what, got, want, a->name, tolerance);
    if (a->role == MECH_GRADIENT && gradients) same_array(what, got, want, a->name, 2 * tolerance);
  }
}

static void set_all(struct mech_bench *m, const char *name, double value) {
  const int which = mech_find(m, name);
  if (which < 0) fail_msg("%s: no array %s", mech_name(m), name);
  for (int64_t i = 0; i < m->a[which].count; i++) mech_set(m, which, i, value);
}
/* Zeros the gradients that a call adds to. */
static void clear_gradients(struct mech_bench *m) {
  for (int i = 0; i < m->n; i++)
    if (m->a[i].role == MECH_GRADIENT && m->a[i].adds) set_all(m, m->a[i].name, 0);
}

/* ---- neutral settings ---- */

static const struct neutral {
  const char *mechanism, *text, *array;
  double value;
} neutral[] = {
    {"span", "{\"span\":{\"limit\":128,\"ramp\":8}}", "z", 1},
    {"span", "{\"span\":{\"limit\":80,\"ramp\":1,\"dynamic\":true}}", "zt", 1},
    {"threshold", "{\"threshold\":{\"tau\":1}}", NULL, 0},
    {"exclusive", "{\"exclusive\":{\"gate\":true}}", "gate", 0},
    {"gate", "{\"gate\":\"elementwise\"}", "output_gate", 1},
    {"gate", "{\"gate\":\"head\"}", "output_gate", 1},
    {"window", "{\"window\":67}", NULL, 0},
    {"strided", "{\"strided\":67}", NULL, 0},
    {"strided", "{\"strided\":1}", NULL, 0},
    {"sqrt", "{\"sqrt\":{\"buffer\":67}}", NULL, 0},
    {"relative", "{\"relative\":true}", "p", 0},
    {"buckets", "{\"buckets\":true}", "bias", 0},
    {"alibi", "{\"alibi\":{\"max_bias\":1000}}", NULL, 0},
    {"forget", "{\"forget\":true}", "forget", 0},
    {"write", "{\"write\":{\"window\":9}}", "write", 0},
    {"fade", "{\"fade\":true}", "fade", 0},
    {"softcap", "{\"softcap\":{\"cap\":1e9}}", NULL, 0},
    {"selective", "{\"selective\":{\"bilinear\":true}}", "sq", 0},
    {"selective", "{\"selective\":{\"strength\":\"learned\"}}", "strength", 0},
    {"selective", "{\"selective\":{\"bilinear\":true,\"relu\":false,\"shift\":false}}", "sk", 0},
};
enum { NEUTRALS = sizeof neutral / sizeof *neutral };

static bool enabled(const struct mech_case *c, const char *mechanism) {
  for (int i = 0; i < wn_mechanism_count(); i++)
    if (!strcmp(wn_mechanism_at(i)->name, mechanism)) return wn_mechanism_at(i)->is_enabled(&c->config);
  fail_msg("no mechanism %s", mechanism);
  return false;
}

/* Adds neutral mechanism `only` to the case, or with -1 a neutral setting of each mechanism that it lacks. */
static bool check_neutral(const struct mech_bench *plain, int only) {
  struct mech_case c = *plain->s.c;
  bool any = false, set[NEUTRALS] = {false};
  for (int n = 0; n < NEUTRALS; n++) {
    if ((only >= 0 && n != only) || enabled(&c, neutral[n].mechanism)) continue;
    if (!strcmp(neutral[n].mechanism, "softcap") && enabled(&c, "fade")) continue; /* a refused pair */
    if (!strcmp(neutral[n].mechanism, "fade") && enabled(&c, "softcap")) continue;
    const struct mech_case before = c;
    mech_merge(&c, before.text, neutral[n].text);
    set[n] = any = true;
  }
  if (!any) return true;
  struct mech_setup s = plain->s;
  s.c = &c;
  struct mech_bench m;
  mech_make(&m, &s, dtype);
  clear_gradients(&m);
  for (int n = 0; n < NEUTRALS; n++)
    if (set[n] && neutral[n].array) set_all(&m, neutral[n].array, neutral[n].value);
  const bool ran = mech_both(&place, &m);
  if (ran) same_results("a neutral mechanism", &m, plain, true);
  if (ran && (set[0] || set[1])) { /* no key is on the ramp: a span has no gradient */
    const int dz = mech_find(&m, set[0] ? "dz" : "dzt");
    for (int64_t i = 0; i < m.a[dz].count; i++) assert_true(mech_get(&m, dz, i) == 0);
  }
  mech_clear(&m);
  return ran;
}

static void check_neutrals(void) {
  for (int i = 0; i < mech_count; i++) {
    struct mech_setup s = sized(&mech_cases[i], i);
    s.documents = i % 2;
    struct mech_bench plain;
    mech_settle(&reference, &s);
    mech_make(&plain, &s, dtype);
    clear_gradients(&plain);
    if (mech_both(&place, &plain)) {
      for (int n = 0; n < NEUTRALS && i < mech_alone; n++) check_neutral(&plain, n);
      if (i >= mech_alone) check_neutral(&plain, -1);
    }
    mech_clear(&plain);
  }
}

/* ---- exclusive ---- */

static void check_exclusive(void) {
  int rows = 0, alone = 0;
  for (int i = 0; i < mech_count; i++) {
    const wn_attention_config *config = &mech_cases[i].config;
    if (!config->exclusive.enabled || config->exclusive.gate) continue;
    struct mech_setup s = sized(&mech_cases[i], i);
    s.documents = i % 4 < 2;
    struct mech_bench m;
    mech_make(&m, &s, dtype);
    if (m.op.gate.elementwise) m.op.gate.on = false; /* this gate rotates outputs; a gate per head only scales them */
    if (mech_call(&place, &m, &m.op, false)) {
      const int y = mech_find(&m, "y"), v = mech_find(&m, "v");
      for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < s.H; h++) {
          const int64_t g = h / (s.H / s.Hkv), to = t * m.op.s_y.t + h * m.op.s_y.h,
                        at = t * m.op.s_v.t + g * m.op.s_v.h;
          double dot = 0, of_y = 0, of_v = 0;
          for (int64_t d = 0; d < s.D; d++) {
            const double a = mech_get(&m, y, to + d), b = mech_get(&m, v, at + d);
            dot += a * b, of_y += a * a, of_v += b * b;
          }
          if (!(fabs(dot) <= 0.5 * tolerance * sqrt(of_v) * (sqrt(of_y) + sqrt(of_v))))
            fail_msg("exclusive on %s: %s: row %lld, head %lld: y.v is %g", place.backend->name, mech_name(&m),
                     (long long)t, (long long)h, dot);
          rows++;
          if ((m.doc_start ? m.doc_start[t] : 0) != t || m.op.sinks.n > 0) continue;
          /* A document's first row sees only itself. */
          if (of_y != 0)
            fail_msg("exclusive on %s: %s: first row %lld, head %lld: |y| is %g, expected 0", place.backend->name,
                     mech_name(&m), (long long)t, (long long)h, sqrt(of_y));
          alone++;
        }
    }
    mech_clear(&m);
  }
  assert_true(place.lacking || (rows > 1000 && alone > 20));
}

/* ---- evictions ---- */

static void same_bits(const char *what, const struct mech_bench *got, const struct mech_bench *want, bool inspected) {
  for (int i = 0; i < want->n; i++) {
    const struct mech_array *a = &want->a[i];
    if (!inspected && (!strcmp(a->name, "F") || !strcmp(a->name, "f_out"))) continue;
    const size_t each = a->whole ? sizeof(int32_t) : wn_dtype_size(dtype);
    if (memcmp(a->data, got->a[i].data, (size_t)a->count * each) != 0)
      fail_msg("%s on %s: %s: %s differs", what, place.backend->name, mech_name(got), a->name);
  }
}

/* Keys that are never evicted: the same as without the rule. Keys evicted w rows after their own: a window. And keys
 * that no row sees any more need no selections: without F and f_out the rest is the same to the bit. */
static void check_evictions(void) {
  for (int i = 0; i < mech_count; i++) {
    struct mech_setup s = sized(&mech_cases[i], i);
    s.documents = i % 2;
    struct mech_bench plain, never, window, kept, looked;
    mech_settle(&reference, &s);
    mech_make(&plain, &s, dtype);
    s.evicts = 1 + i % 2;
    mech_make(&never, &s, dtype);
    mech_make(&window, &s, dtype);
    mech_make(&kept, &s, dtype);
    mech_make(&looked, &s, dtype);
    const int64_t P = wn_slot_groups(&never.op);
    for (int64_t n = 0; n < P * T; n++) {
      never.evicted_at[n] = INT32_MAX, window.evicted_at[n] = (int32_t)(n % T + 9);
      kept.evicted_at[n] = looked.evicted_at[n] = (int32_t)fmin(n % T + 1 + n % 13, n % T < 64 ? 64 : T);
    }
    if (mech_both(&place, &plain) && mech_both(&place, &never)) same_bits("no eviction", &never, &plain, true);
    if (plain.op.window == 0 && !s.c->config.threshold.enabled) { /* this choice is not settled */
      for (int x = 0; x < plain.n; x++) mech_fill(&plain, x);
      plain.op.window = 9;
      clear_gradients(&plain);
      clear_gradients(&window);
      if (mech_both(&place, &plain) && mech_both(&place, &window)) same_results("a window", &window, &plain, true);
    }
    kept.op.sel.F = kept.op.sel.f_out = NULL;
    if (mech_both(&place, &kept) && mech_both(&place, &looked)) same_bits("unseen selections", &kept, &looked, false);
    mech_clear(&plain);
    mech_clear(&never);
    mech_clear(&window);
    mech_clear(&kept);
    mech_clear(&looked);
  }
}

/* ---- pieces ---- */

static void *moved(const struct mech_bench *m, const void *p, int64_t elements) {
  return p ? (char *)(uintptr_t)p + elements * (int64_t)wn_dtype_size(m->dtype) : NULL;
}

/* The part of a call with query rows [row, row+Tq) and keys [key, row+Tq) of one sequence. */
static struct wn_attention piece_of(const struct mech_bench *m, int64_t row, int64_t Tq, int64_t key) {
  struct wn_attention a = m->op;
  a.Tq = Tq, a.Tk = row + Tq - key;
  a.q = moved(m, a.q, row * a.s_q.t), a.dq = moved(m, a.dq, row * a.s_q.t);
  a.y = moved(m, a.y, row * a.s_y.t), a.dy = moved(m, a.dy, row * a.s_y.t);
  a.k = moved(m, a.k, key * a.s_k.t), a.dk = moved(m, a.dk, key * a.s_k.t);
  a.v = moved(m, a.v, key * a.s_v.t), a.dv = moved(m, a.dv, key * a.s_v.t);
  if (a.span.dynamic)
    a.span.z = moved(m, a.span.z, row * a.span.s_z.t), a.span.dz = moved(m, a.span.dz, row * a.span.s_z.t);
  if (a.gate.on) a.gate.g = moved(m, a.gate.g, row * a.gate.s_g.t), a.gate.dg = moved(m, a.gate.dg, row * a.gate.s_g.t);
  if (a.sel.bilinear) {
    a.sel.sq = moved(m, a.sel.sq, row * a.sel.s_sq.t), a.dsq = moved(m, a.dsq, row * a.sel.s_sq.t);
    a.sel.sk = moved(m, a.sel.sk, key * a.sel.s_sk.t), a.dsk = moved(m, a.dsk, key * a.sel.s_sk.t);
  }
  for (struct wn_score_map *t = a.map; t < a.map + a.maps; t++)
    t->key = moved(m, t->key, key * t->s_key.t), t->dkey = moved(m, t->dkey, key * t->s_key.t);
  if (a.sel.on) a.sel.F = NULL, a.sel.f_stride = m->s.Tk, a.sel.f_out = moved(m, a.sel.f_out, key);
  if (a.threshold.control) a.threshold.control += key;
  a.slots.stride = m->s.Tk; /* evictions: only with key 0 */
  return a;
}

/* Arrays without strides that a call writes a number a row to, [heads,Tq], and their place in [heads,T]. */
static const char *const by_row[] = {"lse", "M", "count"};
struct rows {
  void *data[3], *dM; /* dM is an input: it is filled */
};
static void rows_point(const struct mech_bench *m, struct wn_attention *a, struct rows *r, int64_t row, int64_t Tq) {
  const size_t bytes = (size_t)(m->s.H * T) * sizeof(double);
  for (int i = 0; i < 3; i++) r->data[i] = malloc(bytes);
  a->lse = r->data[0];
  if (a->sel.M) a->sel.M = r->data[1];
  r->dM = malloc(bytes);
  const int which = mech_find(m, "dM");
  const size_t each = wn_dtype_size(m->dtype);
  for (int64_t h = 0; which >= 0 && h < m->a[which].count / T; h++)
    memcpy((char *)r->dM + (size_t)(h * Tq) * each, (const char *)m->a[which].data + (size_t)(h * T + row) * each,
           (size_t)Tq * each);
  if (a->sel.dM) a->sel.dM = r->dM;
  if (a->threshold.count) a->threshold.count = r->data[2];
}
static void rows_take(struct mech_bench *m, const struct rows *r, int64_t row, int64_t Tq) {
  for (int i = 0; i < 3; i++) {
    const int which = mech_find(m, by_row[i]);
    const size_t each = i == 2 ? sizeof(int32_t) : wn_dtype_size(m->dtype);
    for (int64_t h = 0; which >= 0 && h < m->a[which].count / T; h++)
      memcpy((char *)m->a[which].data + (size_t)(h * T + row) * each, (char *)r->data[i] + (size_t)(h * Tq) * each,
             (size_t)Tq * each);
    free(r->data[i]);
  }
  free(r->dM);
}

/* Adds this piece's part of the gradients of keys to the sums over pieces. */
static const char *const of_keys[] = {"dk", "dv", MECH_DKEYED};
enum { OF_KEYS = sizeof of_keys / sizeof *of_keys };
static void add_keys(const struct mech_bench *m, int64_t keys, double *sum[OF_KEYS]) {
  for (int n = 0; n < OF_KEYS; n++) {
    const int which = mech_find(m, of_keys[n]);
    for (int64_t i = 0; which >= 0 && i < m->a[which].count; i++)
      if (mech_counts(m, which, i) && i / m->a[which].t_stride % T < keys) sum[n][i] += mech_get(m, which, i);
  }
}

/* chunk 0: of growing size. */
static bool run_chunks(struct mech_bench *m, int64_t chunk, bool gradients) {
  double *sum[OF_KEYS];
  for (int n = 0; n < OF_KEYS; n++) sum[n] = calloc((size_t)m->a[mech_find(m, "dk")].count, sizeof *sum[n]);
  bool ran = true;
  if (m->op.sel.on) set_all(m, "f_out", 0); /* before the first row nothing has been selected */
  for (int64_t row = 0, size = 1, before = 0; row < T && ran; row += size) {
    size = chunk ? chunk : 2 * before + 1;
    before = size;
    if (size > T - row) size = T - row;
    struct wn_attention a = piece_of(m, row, size, 0);
    if (a.sel.on) a.sel.f_in = row ? a.sel.f_out : NULL; /* in place */
    struct rows r;
    rows_point(m, &a, &r, row, size);
    ran = mech_call(&place, m, &a, false) && (!gradients || mech_call(&place, m, &a, true));
    rows_take(m, &r, row, size);
    if (ran && gradients) add_keys(m, row + size, sum);
  }
  for (int n = 0; n < OF_KEYS; n++) {
    const int which = mech_find(m, of_keys[n]);
    for (int64_t i = 0; gradients && which >= 0 && i < m->a[which].count; i++) mech_set(m, which, i, sum[n][i]);
    free(sum[n]);
  }
  return ran;
}

static void check_chunks(void) {
  static const int64_t chunks[] = {1, 7, 0};
  for (int i = 0; i < mech_count; i++) {
    struct mech_setup s = sized(&mech_cases[i], i);
    s.documents = i / 2 % 2;
    s.evicts = i % 3;
    /* A piece takes earlier selections as constants, so its gradients do not add up to the whole's. */
    const bool gradients = !s.c->config.selective.enabled;
    struct mech_bench whole;
    mech_settle(&reference, &s);
    mech_make(&whole, &s, dtype);
    clear_gradients(&whole);
    const bool ran =
        mech_call(&place, &whole, &whole.op, false) && (!gradients || mech_call(&place, &whole, &whole.op, true));
    for (int n = 0; n < 3 && ran; n++) {
      if (i >= mech_alone && n != i % 3) continue;
      struct mech_bench m;
      mech_make(&m, &s, dtype);
      clear_gradients(&m);
      if (run_chunks(&m, chunks[n], gradients)) same_results("chunks", &m, &whole, gradients);
      mech_clear(&m);
    }
    mech_clear(&whole);
  }
}

static void check_documents(void) {
  for (int i = 0; i < mech_count; i++) {
    struct mech_setup s = sized(&mech_cases[i], i);
    s.documents = true;
    struct mech_bench packed, m;
    mech_settle(&reference, &s);
    mech_make(&packed, &s, dtype);
    mech_make(&m, &s, dtype);
    clear_gradients(&packed);
    clear_gradients(&m);
    bool ran = mech_both(&place, &packed);
    int documents = 0;
    for (int64_t first = 0, next; first < T && ran; first = next) {
      for (next = first + 1; next < T && m.doc_start[next] == first;) next++;
      struct wn_attention a = piece_of(&m, first, next - first, first);
      a.doc_start = NULL;
      struct rows r;
      rows_point(&m, &a, &r, first, next - first);
      ran = mech_call(&place, &m, &a, false) && mech_call(&place, &m, &a, true);
      rows_take(&m, &r, first, next - first);
      documents++;
    }
    assert_true(!ran || documents >= 2);
    if (ran) same_results("packed documents", &m, &packed, true);
    mech_clear(&packed);
    mech_clear(&m);
  }
}

/* ---- grouped heads ---- */

/* For arrays with heads first: repeats each head's block of `block` elements (spread), or adds pairs of blocks up. An
 * array with a number for each query head stays as it is. */
static void spread(struct mech_bench *to, const struct mech_bench *from, const char *name, int64_t block) {
  const int x = mech_find(to, name), y = mech_find(from, name);
  for (int64_t i = 0; x >= 0 && i < to->a[x].count; i++)
    mech_set(to, x, i, mech_get(from, y, to->a[x].count == from->a[y].count ? i : i / (2 * block) * block + i % block));
}
static void gather(struct mech_bench *to, const struct mech_bench *from, const char *name, int64_t block) {
  const int x = mech_find(to, name), y = mech_find(from, name);
  for (int64_t i = 0; x >= 0 && to->a[x].count != from->a[y].count && i < to->a[x].count; i++) {
    const int64_t at = i / block * 2 * block + i % block;
    mech_set(to, x, i, mech_get(from, y, at) + mech_get(from, y, at + block));
  }
}

static void check_groups(void) {
  for (int i = 0; i < mech_count; i++) {
    struct mech_setup s = sized(&mech_cases[i], i);
    if (s.c->config.selective.per_kv_head) continue; /* each group has its own selections */
    s.H = 4, s.Hkv = 2, s.heads_first = true, s.evicts = i % 2;
    struct mech_setup wide = s;
    wide.Hkv = 4;
    struct mech_bench grouped, repeated, sums;
    mech_settle(&reference, &s);
    wide.seed = s.seed;
    mech_make(&grouped, &s, dtype);
    mech_make(&repeated, &wide, dtype);
    mech_make(&sums, &s, dtype);
    clear_gradients(&grouped);
    clear_gradients(&repeated);
    const int64_t block = T * s.D, sink = s.c->config.sinks * s.D;
    spread(&repeated, &grouped, "k", block);
    spread(&repeated, &grouped, "v", block);
    spread(&repeated, &grouped, "sink_k", sink);
    spread(&repeated, &grouped, "sink_v", sink);
    static const char *const keyed[] = {MECH_KEYED}, *const dkeyed[] = {MECH_DKEYED};
    enum { KEYED = sizeof keyed / sizeof *keyed };
    for (int n = 0; n < KEYED; n++) spread(&repeated, &grouped, keyed[n], 1);
    if (mech_both(&place, &grouped) && mech_both(&place, &repeated)) {
      gather(&sums, &repeated, "dk", block);
      gather(&sums, &repeated, "dv", block);
      gather(&sums, &repeated, "dsink_k", sink);
      gather(&sums, &repeated, "dsink_v", sink);
      for (int n = 0; n < KEYED; n++) gather(&sums, &repeated, dkeyed[n], 1);
      for (int x = 0; x < sums.n; x++) { /* the rest has the same shape */
        const int y = mech_find(&repeated, sums.a[x].name);
        if (sums.a[x].count == repeated.a[y].count)
          for (int64_t e = 0; e < sums.a[x].count; e++) mech_set(&sums, x, e, mech_get(&repeated, y, e));
      }
      same_results("grouped heads", &sums, &grouped, true);
    }
    mech_clear(&grouped);
    mech_clear(&repeated);
    mech_clear(&sums);
  }
}

static void everywhere(void (*check)(void)) {
  static const char *const places[][2] = {{"ref", NULL}, {"cpu", ISA_OF_EIGHT}, {"cpu", "avx512"}};
  for (int i = 0; i < 3; i++) {
    if (!mech_open(&place, places[i][0], places[i][1])) continue;
    dtype = i ? WN_F32 : WN_F64;
    tolerance = i ? 5e-6 : 1e-11;
    check();
    mech_close(&place);
  }
}

static void test_neutral(void **state) {
  (void)state;
  everywhere(check_neutrals);
}
static void test_evictions(void **state) {
  (void)state;
  everywhere(check_evictions);
}
static void test_exclusive(void **state) {
  (void)state;
  everywhere(check_exclusive);
}
static void test_chunks(void **state) {
  (void)state;
  everywhere(check_chunks);
}
static void test_documents(void **state) {
  (void)state;
  everywhere(check_documents);
}
static void test_groups(void **state) {
  (void)state;
  everywhere(check_groups);
}

static int setup(void **state) {
  (void)state;
  mech_list(false);
  return mech_open(&reference, "ref", NULL) ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  mech_close(&reference);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_neutral), cmocka_unit_test(test_exclusive), cmocka_unit_test(test_evictions),
      cmocka_unit_test(test_chunks),  cmocka_unit_test(test_documents), cmocka_unit_test(test_groups),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
