/* Attention with any mechanism, for tests: the cases follow from the registry's entries (each mechanism alone, every
 * two together), and so do the arrays, the calls on a backend, and what is compared. A new mechanism in the registry is
 * tested without an edit here. */
#ifndef WN_TESTS_MECHANISMS_H
#define WN_TESTS_MECHANISMS_H

#include "isa.h"
#include "support.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include "attention/registry.h"
#include "backends/backends.h"
#include "base/rng.h"
#include "ops/terms.h"
#include "tensor/bf16.h"

/* ---- cases ---- */

struct mech_case {
  char text[600]; /* the "attention" object */
  wn_attention_config config;
  int number; /* its seeds derive from it */
};
enum { MECH_CASES_MAX = 1200 };
static struct mech_case mech_cases[MECH_CASES_MAX];
static int mech_count, mech_alone; /* the first mech_alone cases have one mechanism */

/* The case that has two objects' settings. */
static void mech_merge(struct mech_case *c, const char *first, const char *second) {
  json_t *object = json_loads(first, 0, NULL), *other = json_loads(second, 0, NULL);
  assert_non_null(object);
  assert_non_null(other);
  assert_int_equal(json_object_update_recursive(object, other), 0);
  char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
  assert_true(strlen(text) < sizeof c->text);
  strcpy(c->text, text);
  if (wn_attention_config_parse(NULL, text, &c->config) != WN_OK) fail_msg("case %s does not parse", text);
  free(text);
  json_decref(object);
  json_decref(other);
}

static void mech_add(const char *first, const char *second, int number) {
  assert_true(mech_count < MECH_CASES_MAX);
  mech_cases[mech_count].number = number;
  mech_merge(&mech_cases[mech_count++], first, second);
}

/* Pairs of mechanisms i < j. */
static void mech_add_pairs(int i, int j, bool all_pairs, int *number) {
  /* the only refused pairs (test_model_config.c): both take up attention weight that no key gets; both bend a logit */
  if (!strcmp(wn_mechanism_at(i)->name, "sinks") && !strcmp(wn_mechanism_at(j)->name, "off_by_one")) return;
  if (!strcmp(wn_mechanism_at(i)->name, "fade") && !strcmp(wn_mechanism_at(j)->name, "softcap")) return;
  const char *const *a = wn_mechanism_at(i)->cases, *const *b = wn_mechanism_at(j)->cases;
  if (i == 0) a += a[1] != NULL; /* dense: one with its own scale */
  for (int x = 0; a[x] && (all_pairs || x == 0); x++)
    for (int y = 0; b[y] && ((all_pairs && i > 0) || y == 0); y++) mech_add(a[x], b[y], (*number)++);
}

/* Every case alone, then all pairs of different mechanisms: with the first case of each, or with all their cases.
 * WINNOW_TEST_SEED in the environment changes the arrays' numbers. */
static SUPPORT_UNUSED void mech_list(bool all_pairs) {
  mech_count = 0;
  const char *offset = getenv("WINNOW_TEST_SEED");
  const int n = wn_mechanism_count();
  int number = offset ? 1000 * atoi(offset) : 0;
  for (int i = 0; i < n; i++)
    for (const char *const *c = wn_mechanism_at(i)->cases; *c; c++) mech_add("{}", *c, number++);
  mech_alone = mech_count;
  for (int i = 0; i < n; i++)
    for (int j = i + 1; j < n; j++) mech_add_pairs(i, j, all_pairs, &number);
}

/* Rows without a causal mask, as in an encoder, that select. All rows select from the first one on, so logits are
 * small: with F in the hundreds, every row would see only the first key. */
static SUPPORT_UNUSED void mech_list_open(void) {
  static const char *const cases[] = {
      "{\"selective\":{}}",
      "{\"selective\":{\"shift\":false,\"protect_self\":false}}",
      "{\"selective\":{\"protect_first\":false,\"head\":1,\"strength\":\"scheduled\"}}",
      "{\"selective\":{\"bilinear\":true}}",
      "{\"selective\":{\"per_kv_head\":true,\"strength\":\"learned\"}}",
      "{\"selective\":{\"per_kv_head\":true,\"bilinear\":true,\"strength\":\"learned\",\"protect_self\":false}}",
      "{\"selective\":{\"relu\":false,\"bilinear\":true,\"shift\":false}}",
      "{\"selective\":{\"relu\":false}}",
      "{\"selective\":{\"head\":1},\"buckets\":{\"count\":12,\"farthest\":40}}",
      "{\"selective\":{},\"softcap\":{\"cap\":2.5}}",
      "{\"selective\":{\"per_kv_head\":true},\"buckets\":{\"count\":8,\"farthest\":9},\"softcap\":{\"cap\":4}}",
  };
  mech_count = 0;
  for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
    mech_add("{\"bidirectional\":true,\"scale\":0.02}", cases[i], 5000 + i);
  mech_alone = mech_count;
}

/* Spans with keys exactly at the ends of their ramps (`edges` below), alone and with what acts on such a key. The
 * longest reach, limit + ramp, is 16. */
static SUPPORT_UNUSED void mech_list_edges(void) {
  static const char *const spans[] = {
      "{\"span\":{\"limit\":8,\"ramp\":8}}",
      "{\"span\":{\"limit\":8,\"ramp\":2,\"dynamic\":true}}",
      "{\"span\":{\"limit\":8,\"ramp\":3,\"exclude_self\":true}}",
      "{\"span\":{\"limit\":8,\"ramp\":0.5}}",
  };
  static const char *const others[] = {
      "{}",
      "{\"relative\":{\"length\":200},\"window\":17}",
      "{\"selective\":{}}",
      "{\"softcap\":{\"cap\":2},\"exclusive\":true}",
      "{\"sinks\":2,\"gate\":\"head\"}",
      "{\"threshold\":{\"tau\":1}}",
      "{\"threshold\":{\"tau\":0.7}}",
      "{\"alibi\":true,\"strided\":3}",
  };
  mech_count = 0;
  for (int i = 0; i < (int)(sizeof spans / sizeof *spans); i++)
    for (int j = 0; j < (int)(sizeof others / sizeof *others); j++) mech_add(spans[i], others[j], 6000 + 10 * i + j);
  mech_alone = mech_count;
}

/* ---- one call's arrays ---- */

struct mech_setup {
  const struct mech_case *c;
  int64_t B, Tq, Tk, H, Hkv, D;
  bool heads_first; /* [B,H,T,D]; else [B,T,H,D] with a gap after each token: */
  bool wide_gap;    /* 8 elements instead of 3 */
  bool same_keys;   /* all tokens have the first one's keys (not with heads_first) */
  bool documents, control;
  int64_t document_tokens; /* of each document; 0: about 20 */
  bool padded;             /* encoder rows: fewer keys a sequence; none in the second, one in the third */
  bool f_in;               /* earlier rows have selected */
  bool edges;              /* spans of 0, of the limit, and of whole tokens */
  int evicts;              /* 0: no evictions, 1: of all heads together, 2: of each key-value head */
  int64_t dk_from;
  double dropout;
  bool bf16; /* q, k, v, dy are rounded to bf16; a float bench stores them, y, dq, dk and dv so */
  uint64_t seed;
};

enum mech_role { MECH_INPUT, MECH_GRADIENT, MECH_OUTPUT, MECH_FIXED };
struct mech_array {
  char name[24];
  enum mech_role role;
  int64_t count, t_stride, width, from; /* by token: element i belongs to token i/t_stride % Tk; tokens before `from`
                                           and elements behind `width` of a token are not the call's. t_stride 0: all
                                           elements are the call's */
  int input;                            /* the input whose gradient this is */
  bool adds;                            /* a gradient that a call adds to */
  bool whole;                           /* int32 */
  bool row;                             /* of the call's row_type */
  void *data;
};
enum { MECH_ARRAYS_MAX = 40 };
struct mech_bench {
  struct mech_setup s;
  wn_dtype dtype;
  struct wn_attention op;
  struct mech_array a[MECH_ARRAYS_MAX];
  int n;
  int32_t *doc_start, *evicted_at, *key_count;
  uint8_t *control;
  double *cut;
  void *dot, *ungated;
};

static bool mech_half(const struct mech_bench *m, int which) {
  return m->a[which].row && m->s.bf16 && m->dtype == WN_F32;
}
/* How an array's elements are stored. Loops ask once: of the time of tests of attention, most was spent here. */
enum mech_kind { MECH_DOUBLES, MECH_FLOATS, MECH_HALVES, MECH_WHOLES };
static enum mech_kind mech_kind_of(const struct mech_bench *m, int which) {
  if (m->a[which].whole) return MECH_WHOLES;
  if (mech_half(m, which)) return MECH_HALVES;
  return m->dtype == WN_F64 ? MECH_DOUBLES : MECH_FLOATS;
}
static inline __attribute__((always_inline)) double mech_load(const void *data, enum mech_kind kind, int64_t i) {
  switch (kind) {
  case MECH_FLOATS:
    return (double)((const float *)data)[i];
  case MECH_DOUBLES:
    return ((const double *)data)[i];
  case MECH_HALVES:
    return (double)wn_bf16_value(((const uint16_t *)data)[i]);
  default:
    return ((const int32_t *)data)[i];
  }
}
static inline __attribute__((always_inline)) void mech_store(void *data, enum mech_kind kind, int64_t i, double v) {
  switch (kind) {
  case MECH_FLOATS:
    ((float *)data)[i] = (float)v;
    break;
  case MECH_DOUBLES:
    ((double *)data)[i] = v;
    break;
  case MECH_HALVES:
    ((uint16_t *)data)[i] = wn_bf16_round((float)v);
    break;
  default:
    ((int32_t *)data)[i] = (int32_t)v;
  }
}
static size_t mech_size(const struct mech_bench *m, int which) {
  static const size_t sizes[] = {sizeof(double), sizeof(float), sizeof(uint16_t), sizeof(int32_t)};
  return sizes[mech_kind_of(m, which)];
}
static SUPPORT_UNUSED double mech_get(const struct mech_bench *m, int which, int64_t i) {
  return mech_load(m->a[which].data, mech_kind_of(m, which), i);
}
static SUPPORT_UNUSED void mech_set(struct mech_bench *m, int which, int64_t i, double v) {
  mech_store(m->a[which].data, mech_kind_of(m, which), i, v);
}
static int mech_find(const struct mech_bench *m, const char *name) {
  for (int i = 0; i < m->n; i++)
    if (!strcmp(m->a[i].name, name)) return i;
  return -1;
}
/* Whether the call reads or writes this element. */
static SUPPORT_UNUSED bool mech_counts(const struct mech_bench *m, int which, int64_t i) {
  const struct mech_array *a = &m->a[which];
  if (!a->t_stride) return true;
  return i % a->t_stride < a->width && i / a->t_stride % m->s.Tk >= a->from;
}

/* Uniform in [0,1), by splitmix64: with the library's generator, filling arrays would take most of a test's time. */
static inline __attribute__((always_inline)) double mech_uniform(uint64_t seed, uint64_t salt, uint64_t i) {
  uint64_t x =
      seed * UINT64_C(0xD1B54A32D192ED03) + salt * UINT64_C(0x8CB92BA72F3D8DD7) + i * UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
  return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

/* Arrays of numbers of the keys, [B,Tk,Hkv], and their gradients. */
#define MECH_KEYED "forget", "write", "fade"
#define MECH_DKEYED "dforget", "dwrite", "dfade"
static bool mech_is_keyed(const char *name) {
  static const char *const keyed[] = {MECH_KEYED};
  for (size_t i = 0; i < sizeof keyed / sizeof *keyed; i++)
    if (!strcmp(name, keyed[i])) return true;
  return false;
}

/* Values are exact in float, the same for every dtype, and derived from the array's name: arrays that two cases share
 * are equal. Their range suits the array's meaning. */
static void mech_fill(struct mech_bench *m, int which) {
  const struct mech_array *a = &m->a[which];
  const struct mech_setup *s = &m->s;
  uint64_t salt = 0;
  for (const char *c = a->name; *c; c++) salt = salt * 31 + (unsigned char)*c;
  const bool logits =
      !strcmp(a->name, "q") || !strcmp(a->name, "k") || !strcmp(a->name, "sq") || !strcmp(a->name, "sk");
  const bool ratio = !strcmp(a->name, "z") || !strcmp(a->name, "zt");
  const double limit = s->c->config.span.limit, longest = fmin(1, (double)s->Tk / limit);
  const bool edges = ratio && s->edges, rounds = a->row && s->bf16, is_f = !strcmp(a->name, "f_in");
  double factor = 1, plus = 0;
  if (logits) factor = 1.2;
  if (!strcmp(a->name, "p")) factor = 0.5;
  if (!strcmp(a->name, "gate")) factor = 0.3, plus = 0.7;
  if (!strcmp(a->name, "output_gate")) factor = 0.25, plus = 0.5; /* like a sigmoid's output */
  const bool logs = mech_is_keyed(a->name);                       /* of gates */
  if (!strcmp(a->name, "strength")) factor = 0.3, plus = 0.6;     /* positive */
  const enum mech_kind kind = mech_kind_of(m, which);
  const uint64_t seed = s->seed;
  void *data = a->data;
  for (int64_t i = 0, n = a->count; i < n; i++) {
    if (kind == MECH_WHOLES) {
      mech_store(data, kind, i, -7);
      continue;
    }
    const double u = mech_uniform(seed, salt, (uint64_t)i);
    double v = (2 * u - 1) * 1.7320508075688772 * factor + plus; /* of variance 1, but for the factor */
    if (ratio) v = u * longest;                                  /* within the context */
    if (edges) v = i % 3 < 2 ? (double)(i % 3) : floor(u * limit) / limit;
    if (is_f) v = fabs(v);
    if (logs) v = -fabs(v) * (strcmp(a->name, "fade") ? 1 : 0.1);
    if (rounds) v = (double)wn_bf16_value(wn_bf16_round((float)v));
    mech_store(data, kind, i, (double)(float)v);
  }
}

static bool mech_is_row(const char *name) {
  static const char *const rows[] = {"q", "k", "v", "y", "dy", "dq", "dk", "dv"};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (!strcmp(name, rows[i])) return true;
  return false;
}
static int mech_array_add(struct mech_bench *m, const char *name, enum mech_role role, int64_t count) {
  struct mech_array *a = &m->a[m->n];
  assert_true(m->n < MECH_ARRAYS_MAX);
  *a = (struct mech_array){.role = role, .count = count, .input = -1, .row = mech_is_row(name)};
  snprintf(a->name, sizeof a->name, "%s", name);
  a->data = malloc((size_t)count * sizeof(double));
  mech_fill(m, m->n);
  return m->n++;
}
/* [B,T,heads,D] or [B,heads,T,D]. The call's rows are the last `rows` tokens. */
static int mech_heads_add(struct mech_bench *m, const char *name, enum mech_role role, int64_t heads, int64_t rows,
                          struct wn_stride *stride) {
  const int64_t T = m->s.Tk, D = m->s.D, ld = heads * D + (m->s.wide_gap ? 8 : 3);
  const int64_t count = m->s.B * T * (m->s.heads_first ? heads * D : ld);
  *stride = m->s.heads_first ? (struct wn_stride){.b = heads * T * D, .t = D, .h = T * D}
                             : (struct wn_stride){.b = T * ld, .t = ld, .h = D};
  const int i = mech_array_add(m, name, role, count);
  m->a[i].t_stride = stride->t, m->a[i].width = m->s.heads_first ? D : heads * D, m->a[i].from = T - rows;
  for (int64_t e = 0; m->s.same_keys && !strcmp(name, "k") && e < count; e++)
    mech_set(m, i, e, mech_get(m, i, e / (T * ld) * T * ld + e % ld));
  return i;
}
/* The address of the call's first token. */
static void *mech_at(const struct mech_bench *m, int which) {
  const struct mech_array *a = &m->a[which];
  const int64_t skip = a->role == MECH_INPUT || a->role == MECH_OUTPUT || a->role == MECH_FIXED
                           ? a->from * a->t_stride
                           : (m->a[a->input].from * a->t_stride);
  return (char *)a->data + (size_t)skip * mech_size(m, which);
}
static int mech_gradient_add(struct mech_bench *m, const char *name, int input, int64_t from, bool adds) {
  const int i = mech_array_add(m, name, MECH_GRADIENT, m->a[input].count);
  m->a[i].t_stride = m->a[input].t_stride, m->a[i].width = m->a[input].width;
  m->a[i].from = from > m->a[input].from ? from : m->a[input].from;
  m->a[i].input = input, m->a[i].adds = adds;
  return i;
}

/* The arrays that the mechanisms' entries describe. */
static void mech_rows_make(struct mech_bench *m) {
  const wn_attention_config *config = &m->s.c->config;
  const struct wn_attention_dims dims = {m->s.B, m->s.Tk, m->s.H, m->s.Hkv, m->s.D};
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *row = wn_mechanism_at(i);
    if (!row->is_enabled(config)) continue;
    if (row->layout) row->layout(&dims, &m->op);
    for (int k = 0; k < row->array_count; k++) {
      const struct wn_mechanism_array *x = &row->arrays[k];
      if (x->role == WN_ARRAY_RESULT || (x->present && !x->present(config))) continue;
      int64_t shape[4], count = 1;
      const int ndim = x->shape(config, &dims, shape);
      for (int d = 0; d < ndim; d++) count *= shape[d];
      const int in = mech_array_add(m, x->name, MECH_INPUT, count);
      struct mech_array *a = &m->a[in];
      /* An input for each token is [B,H,T], like dynamic spans, or [B,T,...], and belongs to query rows; sk belongs to
       * keys, as those of score maps do. */
      int64_t from = 0;
      if (x->role == WN_ARRAY_INPUT) {
        const bool last = shape[1] != dims.T;
        assert_true(!last || shape[ndim - 1] == dims.T);
        a->t_stride = a->width = last ? 1 : count / (dims.B * dims.T);
        const bool keys = !strcmp(x->name, "sk") || x->map; /* a score map's are numbers of the keys */
        if (!keys) a->from = m->s.Tk - m->s.Tq;
        if (keys) from = m->s.dk_from;
      }
      char name[24];
      snprintf(name, sizeof name, "d%s", x->name);
      const int out = mech_gradient_add(m, name, in, from, x->role != WN_ARRAY_INPUT);
      wn_mechanism_bind(x, mech_at(m, in), mech_at(m, out), &m->op);
    }
  }
}

static SUPPORT_UNUSED void mech_make(struct mech_bench *m, const struct mech_setup *s, wn_dtype dtype) {
  *m = (struct mech_bench){.s = *s, .dtype = dtype};
  struct wn_attention *op = &m->op;
  *op = (struct wn_attention){.B = s->B, .Tq = s->Tq, .Tk = s->Tk, .H = s->H, .Hkv = s->Hkv, .D = s->D};
  op->row_type = s->bf16 && dtype == WN_F32 ? WN_BF16 : dtype;
  const int q = mech_heads_add(m, "q", MECH_INPUT, s->H, s->Tq, &op->s_q);
  const int k = mech_heads_add(m, "k", MECH_INPUT, s->Hkv, s->Tk, &op->s_k);
  const int v = mech_heads_add(m, "v", MECH_INPUT, s->Hkv, s->Tk, &op->s_v);
  const int y = mech_heads_add(m, "y", MECH_OUTPUT, s->H, s->Tq, &op->s_y);
  const int dy = mech_heads_add(m, "dy", MECH_FIXED, s->H, s->Tq, &op->s_y);
  op->q = mech_at(m, q), op->k = mech_at(m, k), op->v = mech_at(m, v), op->y = mech_at(m, y), op->dy = mech_at(m, dy);
  op->dq = mech_at(m, mech_gradient_add(m, "dq", q, 0, false));
  op->dk = mech_at(m, mech_gradient_add(m, "dk", k, s->dk_from, false));
  op->dv = mech_at(m, mech_gradient_add(m, "dv", v, s->dk_from, false));
  op->lse = m->a[mech_array_add(m, "lse", MECH_OUTPUT, s->B * s->H * s->Tq)].data;
  op->dk_from = s->dk_from;
  const size_t rows = (size_t)(s->B * s->H * s->Tq);
  if (s->documents) {
    op->doc_start = m->doc_start = malloc((size_t)(s->B * s->Tk) * sizeof *m->doc_start);
    for (int64_t b = 0; b < s->B; b++)
      for (int64_t t = 0, first = 0; t < s->Tk; t++) {
        if (s->document_tokens ? t % s->document_tokens == 0
                               : wn_random_below(3, WN_STREAM_TEST, (uint64_t)b, (uint64_t)t, s->Tk > 32 ? 20 : 7) == 0)
          first = t;
        m->doc_start[b * s->Tk + t] = (int32_t)first;
      }
  }
  if (s->padded) {
    op->key_count = m->key_count = malloc((size_t)s->B * sizeof *m->key_count);
    for (int64_t b = 0; b < s->B; b++) m->key_count[b] = (int32_t)(b == 1 ? 0 : b == 2 ? 1 : 1 + s->Tk * 3 / (4 + b));
  }
  if (s->evicts) { /* soon, late or never, but not before the key's own row; every second group evicts all it can */
    const int64_t P = op->slots.groups = s->evicts == 2 ? s->Hkv : 1;
    op->slots.evicted_at = m->evicted_at = malloc((size_t)(s->B * P * s->Tk) * sizeof *m->evicted_at);
    for (int64_t i = 0; i < s->B * P * s->Tk; i++) {
      const uint64_t late = wn_random_below(s->seed, WN_STREAM_TEST, 21, (uint64_t)i, 4);
      const uint64_t most = i / s->Tk % 2 || late == 1 ? 9 : 80;
      const int64_t held = 1 + (int64_t)wn_random_below(s->seed, WN_STREAM_TEST, 22, (uint64_t)i, most);
      m->evicted_at[i] = late == 0 && i / s->Tk % 2 == 0 ? INT32_MAX : (int32_t)(i % s->Tk + held);
    }
  }
  wn_attention_terms(&s->c->config, -1, s->D, op);
  op->sel.dead_share = 0x1p-24;
  op->dropout.p = s->dropout, op->dropout.seed = 17, op->dropout.stream = 5;
  mech_rows_make(m);
  if (op->exclusive.on) op->exclusive.dot = m->dot = malloc(rows * sizeof(double));
  if (op->gate.on) op->gate.ungated = m->ungated = malloc(rows * (size_t)s->D * sizeof(double));
  if (op->threshold.on) {
    op->threshold.cut = m->cut = malloc(2 * rows * sizeof *m->cut);
    const int count = mech_array_add(m, "count", MECH_OUTPUT, (int64_t)rows);
    m->a[count].whole = true;
    mech_fill(m, count);
    op->threshold.count = m->a[count].data;
    if (s->control) {
      op->threshold.control = m->control = malloc((size_t)(s->B * s->Tk));
      for (int64_t i = 0; i < s->B * s->Tk; i++) m->control[i] = i % 5 == 1;
    }
  }
  if (!op->sel.on) return;
  const int64_t groups = s->B * wn_selection_groups(op);
  if (s->f_in) op->sel.f_in = m->a[mech_array_add(m, "f_in", MECH_FIXED, groups * s->Tk)].data;
  if (!op->open) op->sel.f_out = m->a[mech_array_add(m, "f_out", MECH_OUTPUT, groups * s->Tk)].data;
  op->sel.F = m->a[mech_array_add(m, "F", MECH_OUTPUT, groups * s->Tq * s->Tk)].data;
  if (!op->sel.mem) return;
  op->sel.M = m->a[mech_array_add(m, "M", MECH_OUTPUT, groups * s->Tq)].data;
  op->sel.dM = m->a[mech_array_add(m, "dM", MECH_FIXED, groups * s->Tq)].data;
}

static SUPPORT_UNUSED void mech_clear(struct mech_bench *m) {
  for (int i = 0; i < m->n; i++) free(m->a[i].data);
  free(m->doc_start);
  free(m->evicted_at);
  free(m->key_count);
  free(m->control);
  free(m->cut);
  free(m->dot);
  free(m->ungated);
}

static SUPPORT_UNUSED const char *mech_name(const struct mech_bench *m) {
  static char text[900];
  const struct mech_setup *s = &m->s;
  snprintf(text, sizeof text,
           "%s B %lld Tq %lld Tk %lld H %lld Hkv %lld D %lld%s%s%s%s%s%s evicts %d dk_from %lld dropout %g", s->c->text,
           (long long)s->B, (long long)s->Tq, (long long)s->Tk, (long long)s->H, (long long)s->Hkv, (long long)s->D,
           s->bf16 ? " bf16" : "", s->heads_first ? " heads first" : "", s->documents ? " documents" : "",
           s->control ? " control" : "", s->padded ? " padded" : "", s->f_in ? " f_in" : "", s->evicts,
           (long long)s->dk_from, s->dropout);
  return text;
}

/* ---- calls ---- */

struct mech_place { /* where and how it runs */
  wn_context *ctx;
  const struct wn_backend *backend;
  int threads;
  int lacking; /* calls with a term that the backend lacks */
};

static SUPPORT_UNUSED wn_status mech_op(const struct mech_place *p, const struct mech_bench *m,
                                        const struct wn_attention *op, bool backward) {
  struct wn_exec e = {.ctx = p->ctx, .backend = p->backend, .threads = p->threads, .dtype = m->dtype};
  e.scratch_bytes = wn_op_attention_scratch(&e, op, backward);
  const size_t room = (e.scratch_bytes + 63) / 64 * 64;
  e.scratch = room ? aligned_alloc(64, room) : NULL;
  if (room) memset(e.scratch, 0xff, room); /* NaN: scratch is not initialised */
  const wn_status status = backward ? wn_op_attention_backward(&e, op) : wn_op_attention_forward(&e, op);
  free(e.scratch);
  return status;
}
/* Returns false, and counts it, if the backend lacks a term of the call. */
static SUPPORT_UNUSED bool mech_call(struct mech_place *p, const struct mech_bench *m, const struct wn_attention *op,
                                     bool backward) {
  const wn_status status = mech_op(p, m, op, backward);
  if (status == WN_OK) return true;
  if (status != WN_ERR_UNSUPPORTED || !strstr(wn_context_error(p->ctx), "does not serve the term") ||
      !CPU_MAY_LACK_TERMS || strcmp(p->backend->name, "cpu") != 0)
    fail_msg("%s on %s: %s", mech_name(m), p->backend->name, wn_context_error(p->ctx));
  p->lacking++;
  return false;
}
static SUPPORT_UNUSED bool mech_both(struct mech_place *p, const struct mech_bench *m) {
  return mech_call(p, m, &m->op, false) && mech_call(p, m, &m->op, true);
}

/* A threshold's choice is discontinuous. Changes the setup's seed until no row is within a few roundings of the
 * threshold, so that float and double keep the same keys. */
static SUPPORT_UNUSED void mech_settle(struct mech_place *reference, struct mech_setup *s) {
  for (const double near = 2e-5; s->c->config.threshold.enabled; s->seed += 1000) {
    struct mech_bench m;
    mech_make(&m, s, WN_F64);
    const int count = mech_find(&m, "count");
    const size_t bytes = (size_t)m.a[count].count * sizeof(int32_t);
    const double tau = m.op.threshold.tau;
    int32_t *low = malloc(bytes);
    m.op.threshold.tau = tau * (1 - near);
    mech_call(reference, &m, &m.op, false);
    memcpy(low, m.a[count].data, bytes);
    m.op.threshold.tau = fmin(1, tau * (1 + near));
    mech_call(reference, &m, &m.op, false);
    const bool same = !memcmp(low, m.a[count].data, bytes);
    free(low);
    mech_clear(&m);
    if (same) return;
  }
}

/* A context on a backend; isa NULL: the machine's best. Returns false if this machine lacks the instruction set. */
static SUPPORT_UNUSED bool mech_open(struct mech_place *p, const char *name, const char *isa) {
  *p = (struct mech_place){.threads = 1};
  if (!context_with_isa(name, isa, 2, &p->ctx)) return false;
  assert_ok(p->ctx, wn_backend_of(p->ctx, &p->backend));
  return true;
}
static SUPPORT_UNUSED void mech_close(struct mech_place *p) {
  if (p->lacking) print_message("%d calls left out: backend %s lacks their terms\n", p->lacking, p->backend->name);
  wn_context_destroy(p->ctx);
}

#endif
