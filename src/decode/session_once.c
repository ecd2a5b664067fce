/* Methods that score a whole cache (session_once.h). While a context is read, each piece's rotated queries and keys go
 * to the method's own collection (kv/once/seen.c), as floats. When a layer is compressed, its keys and values are
 * packed as floats in order of position, one layer and sequence at a time: n (2 D + 2) Hkv numbers. Heads that hold the
 * same tokens are scored together, others one by one. */
#include "decode/session_once.h"

#include <string.h>

#include "base/error.h"
#include "io/gguf_types.h"

static void once_options(const wn_budgets *b, struct wn_once_options *out) {
  wn_once_options_init(out);
  out->seed = b->seed;
  out->snapkv.rows = b->snapkv.rows, out->snapkv.neighbours = b->snapkv.neighbours;
  out->snapkv.pool = b->snapkv.pool;
}

/* Sets up what is collected for the method of these budgets. */
static wn_status once_collect(wn_context *ctx, const struct wn_session *s, const wn_budgets *b,
                              struct wn_session_collected *out) {
  const wn_model_config *c = &s->model->config;
  void *memory;
  out->method = wn_once_at(b->method - 1);
  once_options(b, &out->options);
  WN_TRY(wn_alloc(ctx, "what a method collects", (size_t)(c->layers * s->B) * sizeof *out->seen, &memory));
  out->seen = memory;
  for (int64_t i = 0; out->method && i < c->layers * s->B; i++) {
    const struct wn_once_shape shape = {.H = c->heads,
                                        .Hkv = c->kv_heads,
                                        .D = c->head_size,
                                        .capacity = s->capacity,
                                        .rope = c->position == WN_POS_ROPE ? &s->once->rope[i / s->B] : NULL,
                                        .threads = ctx->threads};
    WN_TRY(wn_once_seen_create(ctx, out->method, &out->options, &shape, &out->seen[i]));
  }
  return WN_OK;
}

wn_status wn_session_once_open(wn_context *ctx, struct wn_session *s) {
  const wn_model_config *c = &s->model->config;
  const int64_t L = c->layers, D = c->head_size;
  void *memory;
  WN_TRY(wn_alloc(ctx, "a method", sizeof *s->once, &memory));
  struct wn_session_once *o = s->once = memory;
  const struct wn_array of[] = {
      WN_ARRAY_FOR(o->rope, "rotations", true, WN_DIMS(L)),
      WN_ARRAY_FOR(o->frequencies, "angles", true, WN_DIMS(L, D)),
      WN_ARRAY_FOR(o->scale, "factors on logits", true, WN_DIMS(L)),
      WN_ARRAY_FOR(o->at, "positions of rows", true, WN_DIMS(s->piece)),
      WN_ARRAY_FOR(o->q, "queries of rows", true, WN_DIMS(s->piece, c->heads, D)),
      WN_ARRAY_FOR(o->k, "keys of rows", true, WN_DIMS(s->piece, c->kv_heads, D)),
      WN_ARRAY_FOR(o->text, "text", true, WN_DIMS(s->B, s->capacity)),
  };
  WN_TRY(WN_ARRAYS_CREATE(ctx, &o->arrays, "a method", of));
  struct wn_run run;
  wn_run_init(&run, s->model, s->B, 1);
  if (wn_session_turns_itself(s)) run.rotary = &s->rotary;
  for (int64_t l = 0; l < L; l++) {
    o->rope[l] = wn_run_rotation(&run, l);
    if (!o->rope[l].frequencies) continue; /* the view's are on the host */
    const size_t bytes = (size_t)(c->rope_size ? c->rope_size : D) / 2 * sizeof *o->frequencies;
    WN_TRY(wn_memory_read(ctx, s->model->backend->memory, o->frequencies + l * D, o->rope[l].frequencies, bytes));
    o->rope[l].frequencies = o->frequencies + l * D;
  }
  return once_collect(ctx, s, &s->budgets, &o->own);
}

wn_status wn_session_once_create(wn_context *ctx, struct wn_session *s) {
  const wn_budgets *b = &s->budgets;
  const bool plain = b->allot == WN_ALLOT_UNIFORM || b->allot == WN_ALLOT_TAU;
  if (b->layers == 0 || (plain && !b->method && !b->critical)) return WN_OK;
  return wn_session_once_open(ctx, s);
}

/* What is collected for the method with these options; NULL: nothing. */
static struct wn_session_collected *once_find(const struct wn_session_once *o, const struct wn_once_method *method,
                                              const struct wn_once_options *options) {
  for (struct wn_session_collected *c = (struct wn_session_collected *)&o->own; c; c = c->next)
    if (c->method == method && c->options.seed == options->seed && c->options.snapkv.rows == options->snapkv.rows &&
        c->options.snapkv.neighbours == options->snapkv.neighbours && c->options.snapkv.pool == options->snapkv.pool)
      return c;
  return NULL;
}

wn_status wn_session_once_join(wn_context *ctx, struct wn_session *s, const wn_budgets *other) {
  struct wn_once_options options;
  struct wn_session_collected *c;
  if (!s->once) WN_TRY(wn_session_once_open(ctx, s)); /* a compression reads the factor on logits in any case */
  s->once->joined = true;
  once_options(other, &options);
  if (!other->method || once_find(s->once, wn_once_at(other->method - 1), &options)) return WN_OK;
  WN_TRY(WN_ALLOC(ctx, "a method", 1, &c));
  c->next = s->once->own.next;
  s->once->own.next = c;
  return once_collect(ctx, s, other, c);
}

/* ---- scores that are known ---- */

static void once_forget(struct wn_session_collected *c) {
  struct wn_session_scores *known = c->known;
  c->known = NULL;
  if (!known || --known->users > 0) return;
  wn_arrays_clear(&known->arrays);
  wn_free(known);
}

static void once_forget_all(struct wn_session *s) {
  for (struct wn_session_collected *c = s->once ? &s->once->own : NULL; c; c = c->next) once_forget(c);
}

/* Shares the scores of what `from` has read, n tokens. */
static wn_status once_know(wn_context *ctx, const wn_model_config *m, int64_t n, struct wn_session_collected *from,
                           struct wn_session_collected *to) {
  const int64_t L = m->layers, G = m->kv_heads;
  if (!from->known) {
    struct wn_session_scores *all;
    WN_TRY(WN_ALLOC(ctx, "scores of a context", 1, &all));
    *all = (struct wn_session_scores){.users = 1, .n = n};
    from->known = all;
    const struct wn_array of[] = {WN_ARRAY_FOR(all->scores, "scores", true, WN_DIMS(L, G, n)),
                                  WN_ARRAY_FOR(all->norms, "norms", true, WN_DIMS(L, G, n)),
                                  WN_ARRAY_FOR(all->scored, "layers", true, WN_DIMS(L)),
                                  WN_ARRAY_FOR(all->projected, "layers", true, WN_DIMS(L))};
    const wn_status status = WN_ARRAYS_CREATE(ctx, &all->arrays, "scores of a context", of);
    if (status != WN_OK) {
      once_forget(from);
      return status;
    }
  }
  to->known = from->known;
  to->known->users++;
  return WN_OK;
}

wn_status wn_session_once_copy(wn_context *ctx, struct wn_session *s, int64_t b, const struct wn_session *from,
                               int64_t source) {
  struct wn_session_once *o = s->once;
  once_forget_all(s);
  if (!o || !from->once) return WN_OK;
  struct wn_session_collected *c = once_find(from->once, o->own.method, &o->own.options);
  memcpy(o->scale, from->once->scale, (size_t)s->model->config.layers * sizeof *o->scale);
  memcpy(o->text + b * s->capacity, from->once->text + source * from->capacity,
         (size_t)from->position * sizeof *o->text);
  for (int64_t l = 0; c && l < s->model->config.layers; l++) {
    struct wn_once_seen *to = o->own.seen[l * s->B + b];
    if (to) WN_TRY(wn_once_seen_copy(ctx, to, c->seen[l * from->B + source]));
  }
  if (!c || !c->method || !from->once->joined) return WN_OK;
  return once_know(ctx, &s->model->config, from->position, c, &o->own);
}

/* ---- a second reading ---- */

bool wn_session_once_repeats(const struct wn_session *s) {
  return s->once && s->once->own.method && s->once->own.method->needs & WN_ONCE_REPEAT;
}

bool wn_session_knows_request(const struct wn_session *s) {
  return s->once && s->once->request[0];
}

wn_status wn_session_once_again(struct wn_session *s) {
  if (!wn_session_once_repeats(s)) return WN_OK;
  if (s->once->again) return s->once->again(s);
  return wn_fail(s->ctx, WN_ERR_ARGUMENT,
                 "session: method \"%s\" asks the model to repeat the context: expected a tokenizer for the request "
                 "(wn_session_repeat_with)",
                 s->once->own.method->name);
}

void wn_session_once_finish(struct wn_session *s) {
  if (!s->once) return;
  wn_free(s->once->largest);
  wn_free(s->once->allotted);
  s->once->largest = NULL, s->once->allotted = NULL;
}

void wn_session_once_destroy(struct wn_session *s) {
  struct wn_session_once *o = s->once;
  if (!o) return;
  once_forget_all(s);
  for (struct wn_session_collected *c = &o->own, *next; c; c = next) {
    next = c->next;
    for (int64_t i = 0; c->seen && i < s->model->config.layers * s->B; i++) wn_once_seen_destroy(c->seen[i]);
    wn_free(c->seen);
    if (c != &o->own) wn_free(c);
  }
  wn_session_once_finish(s);
  for (int i = 0; i < WN_REPEAT_PARTS; i++) wn_free(o->request[i]);
  wn_arrays_clear(&o->arrays);
  wn_free(o);
}

void wn_session_once_reset(struct wn_session *s) {
  once_forget_all(s);
  for (struct wn_session_collected *c = s->once ? &s->once->own : NULL; c; c = c->next)
    for (int64_t i = 0; i < s->model->config.layers * s->B; i++)
      if (c->seen[i]) wn_once_seen_reset(c->seen[i]);
}

/* ---- collecting ---- */

/* Rows of one sequence [T,heads,D] as floats. */
static wn_status once_floats(const struct wn_run *run, const void *x, struct wn_stride stride, int64_t heads, int64_t D,
                             float *out) {
  const struct wn_memory *memory = wn_run_memory(run);
  const wn_dtype dtype = run->exec.dtype;
  const size_t bytes = (size_t)((run->T - 1) * stride.t + (heads - 1) * stride.h + D) * wn_dtype_size(dtype);
  void *opened;
  WN_TRY(wn_memory_open(run->exec.ctx, memory, "queries and keys", x, bytes, &opened));
  for (int64_t t = 0; t < run->T; t++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t d = 0; d < D; d++) *out++ = (float)wn_number(opened, t * stride.t + h * stride.h + d, dtype);
  return wn_memory_close(run->exec.ctx, memory, NULL, 0, opened, false);
}

wn_status wn_session_once_see(const struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_attention *op,
                              const struct wn_kv_rows *rows) {
  struct wn_session_once *o = s->once;
  if (!o || run->measuring) return WN_OK;
  bool any = o->repeat != NULL;
  if (l == 0) once_forget_all(s);
  o->scale[l] = op->scale;
  for (const struct wn_session_collected *c = &o->own; c; c = c->next) any |= c->seen[l * s->B] != NULL;
  if (!any || (s->compressed && s->budgets.when != WN_WHEN_EVERY)) return WN_OK;
  for (int64_t t = 0; t < run->T; t++) o->at[t] = (int32_t)(s->position + t);
  for (int64_t b = 0; b < s->B; b++) {
    const wn_dtype dtype = run->exec.dtype;
    WN_TRY(once_floats(run, wn_element(op->q, b * op->s_q.b, dtype), op->s_q, op->H, op->D, o->q));
    WN_TRY(once_floats(run, wn_element(rows->k, b * rows->s_k.b, dtype), rows->s_k, op->Hkv, op->D, o->k));
    for (const struct wn_session_collected *c = &o->own; c; c = c->next)
      if (c->seen[l * s->B + b]) WN_TRY(wn_once_seen_rows(s->ctx, c->seen[l * s->B + b], o->q, o->k, o->at, run->T));
    if (o->repeat) WN_TRY(o->compare(s, l, run->T));
  }
  return WN_OK;
}

/* ---- scoring ---- */

/* The parts of a layer that are scored together, for one sequence: heads first..first+heads-1. */
struct once_unit {
  int64_t b, l, first, heads, n, K;
  float *k, *v; /* [heads,n,D] */
  float *q;     /* [rows,H,D] of a part's heads */
  float *wo;    /* [C,H*D] */
  double *sums, *scores, *norms;
  struct wn_session_scores *known; /* of this layer and others; NULL: none */
  int64_t *kept;
};

static int64_t once_window(const struct wn_session_once *o) {
  return o->own.method && o->own.method->rows ? o->own.method->rows(&o->own.options) : 0;
}

static wn_status once_read_output(const struct wn_session *s, int64_t l, float *out) {
  const struct wn_model *m = s->model;
  const wn_model_config *c = &m->config;
  const int64_t K = c->heads * c->head_size;
  const int row = m->layers[l].out_weight;
  const struct wn_packed *packed = &m->table.rows[row].packed;
  if (!packed->count) {
    for (int64_t i = 0; i < c->width * K; i++) out[i] = (float)wn_model_value(m, row, i);
    return WN_OK;
  }
  for (int64_t i = 0; i < c->width; i++) {
    wn_gguf_type type;
    const char *at = wn_packed_row(packed, K, i, &type);
    void *opened;
    WN_TRY(wn_memory_open(s->ctx, m->backend->memory, "a row of weights", at, wn_packed_row_bytes(type, K), &opened));
    wn_gguf_decode(type, opened, 0, K, out + i * K);
    WN_TRY(wn_memory_close(s->ctx, m->backend->memory, NULL, 0, opened, false));
  }
  return WN_OK;
}

/* The view of heads g..g+heads-1 of the unit, whose positions are `at`. */
static wn_status once_view(struct wn_session *s, const struct once_unit *u, int64_t g, int64_t heads, const int32_t *at,
                           struct wn_once_view *out) {
  const struct wn_session_once *o = s->once;
  const wn_model_config *c = &s->model->config;
  const int64_t D = c->head_size, group = c->heads / c->kv_heads, n = u->n, first = (u->first + g) * group;
  const bool rotary = c->position == WN_POS_ROPE;
  *out = (struct wn_once_view){.options = &o->own.options,
                               .threads = s->ctx->threads,
                               .layer = u->l,
                               .n = n,
                               .H = heads * group,
                               .Hkv = heads,
                               .D = D,
                               .next = s->position,
                               .kept = u->K < n ? u->K : n,
                               .ratio = s->budgets.share > 0 ? 1 - s->budgets.share : -1,
                               .scale = o->scale[u->l],
                               .at = at,
                               .k = u->k + g * n * D,
                               .v = u->v + g * n * D,
                               .rope = rotary ? &o->rope[u->l] : NULL,
                               .sums = u->sums ? u->sums + g * n : NULL,
                               .largest = o->largest ? o->largest + (u->l * c->kv_heads + u->first + g) * n : NULL,
                               .wo = u->wo ? u->wo + first * D : NULL,
                               .C = c->width,
                               .wo_row = c->heads * D};
  struct wn_once_seen *seen = o->own.seen[u->l * s->B + u->b];
  if (seen) WN_TRY(wn_once_seen_show(s->ctx, seen, out));
  if (heads == c->kv_heads) return WN_OK;
  for (int64_t r = 0; out->q && r < out->w; r++)
    memcpy(u->q + r * heads * group * D, out->q + (r * c->heads + first) * D,
           (size_t)(heads * group * D) * sizeof *u->q);
  if (out->q) out->q = u->q;
  if (out->chunks) out->chunks += (u->first + g) * n;
  if (out->mean) out->mean += first * D, out->covariance += first * D * D;
  return WN_OK;
}

/* Where heads hold the same tokens: the mean over them, or if one protects the token that score, the lowest. */
static void once_mean(const double *scores, int64_t heads, int64_t n, double *out) {
  for (int64_t j = 0; j < n; j++) {
    double sum = 0, least = INFINITY;
    for (int64_t h = 0; h < heads; h++) {
      const double score = scores[h * n + j];
      least = score < least ? score : least;
      sum += wn_once_protected(score) ? 0 : score / (double)heads;
    }
    out[j] = wn_once_protected(least) ? least : sum;
  }
}

/* Copies the unit's scores from the parts, or to them. A group's score belongs to each of its heads. */
static void once_exchange(const struct once_unit *u, struct wn_kept *keep, int64_t parts, bool back) {
  const int64_t n = u->n;
  double *at = u->scores;
  int64_t head = 0;
  for (int64_t i = 0; i < parts; i++) {
    const int64_t P = keep[i].cache->shape.groups, heads = keep[i].cache->shape.Hkv / P;
    double *own = keep[i].scores + u->b * P * n;
    if (back) keep[i].kept = u->kept[head];
    for (int64_t p = 0; p < P; p++, at += heads * n, head += heads) {
      if (back) once_mean(at, heads, n, own + p * n);
      for (int64_t h = 0; h < heads && !back; h++) memcpy(at + h * n, own + p * n, (size_t)n * sizeof *at);
    }
  }
}

/* Do all heads of the parts hold the same tokens: everything? */
static bool once_same_tokens(const struct wn_kept *keep, int64_t parts) {
  for (int64_t i = 0; i < parts; i++)
    if (keep[i].cache->seen != keep[i].cache->count) return false;
  return true;
}

/* The positions of one head's tokens, in order. */
static void once_positions(const struct wn_kept *keep, int64_t row, int32_t *at) {
  const struct wn_kv_cache *c = keep->cache;
  for (int64_t j = 0; j < c->count; j++) at[j] = c->at[row * c->shape.capacity + keep->order[row * c->count + j]];
}

/* Are the scores of the unit's layer known, and the norms? */
static bool once_scored(const struct once_unit *u) {
  return u->known && u->known->scored[u->l];
}
static bool once_projected(const struct once_unit *u) {
  return u->known && u->known->projected[u->l];
}

/* The method's scores. */
static wn_status once_method(struct wn_session *s, const struct once_unit *u, const struct wn_once_view *view,
                             double *scores) {
  const struct wn_once_method *method = s->once->own.method;
  const size_t all = (size_t)(view->Hkv * u->n);
  double *known = u->known ? u->known->scores + (size_t)u->l * all : NULL;
  if (once_scored(u)) {
    memcpy(scores, known, all * sizeof *scores);
    return WN_OK;
  }
  WN_TRY(wn_once_score(s->ctx, method, view, scores));
  if (!known || method->by_kept) return WN_OK;
  memcpy(known, scores, all * sizeof *scores);
  u->known->scored[u->l] = true;
  return WN_OK;
}

/* Changes scores by "critical". */
static wn_status once_critical(struct wn_session *s, const struct once_unit *u, const struct wn_once_view *view,
                               int64_t head, double *scores) {
  double *norms = u->known ? u->known->norms + u->l * view->Hkv * u->n : u->norms + head * u->n;
  if (!once_projected(u)) WN_TRY(wn_once_projected(s->ctx, view, norms));
  if (u->known) u->known->projected[u->l] = true;
  return wn_once_critical(s->ctx, view, u->kept + head, norms, scores);
}

/* Scores the unit with the method, and changes scores by "critical". at [n]: room. */
static wn_status once_score(struct wn_session *s, const struct once_unit *u, const struct wn_kept *keep, int64_t parts,
                            bool critical, int32_t *at) {
  const struct wn_once_method *method = s->once->own.method;
  const bool same = once_same_tokens(keep, parts);
  struct wn_once_view view;
  int64_t head = 0;
  for (int64_t i = 0; i < parts; i++) {
    const int64_t P = keep[i].cache->shape.groups, heads = keep[i].cache->shape.Hkv / P;
    for (int64_t p = 0; p < P; p++, head += heads) {
      if (same && head > 0) return WN_OK; /* all were scored with the first */
      once_positions(&keep[i], u->b * P + p, at);
      WN_TRY(once_view(s, u, head, same ? u->heads : heads, at, &view));
      double *scores = u->scores + head * u->n;
      if (!critical && method) WN_TRY(once_method(s, u, &view, scores));
      for (int64_t h = 0; h < view.Hkv; h++) wn_keep_pin(&s->pins, at, u->n, scores + h * u->n);
      if (critical) WN_TRY(once_critical(s, u, &view, head, scores));
    }
  }
  return WN_OK;
}

/* The attention sums of a part's heads [Hkv,n]; of those of a group the mean. */
static wn_status once_sums(const struct wn_session *s, const struct once_unit *u, const struct wn_kept *keep,
                           double *out) {
  const int64_t P = keep->cache->shape.groups, heads = keep->cache->shape.Hkv / P, n = u->n;
  WN_TRY(wn_keep_notes(s->ctx, keep, u->b, out));
  for (int64_t p = P - 1; heads > 1 && p >= 0; p--)
    for (int64_t j = 0; j < n; j++) {
      const double mean = out[p * n + j] / (double)heads;
      for (int64_t h = 0; h < heads; h++) out[(p * heads + h) * n + j] = mean;
    }
  return WN_OK;
}

static wn_status once_run(struct wn_session *s, struct once_unit *u, struct wn_kept *keep, int64_t parts, int32_t *at) {
  const struct wn_session_once *o = s->once;
  const wn_model_config *c = &s->model->config;
  const int64_t n = u->n, D = c->head_size;
  const bool reads = !once_scored(u) || (s->budgets.critical && !once_projected(u));
  int64_t head = 0;
  for (int64_t i = 0; i < parts && reads; head += keep[i++].cache->shape.Hkv) {
    WN_TRY(wn_keep_pack(s->ctx, &keep[i], false, u->b, u->k + head * n * D));
    WN_TRY(wn_keep_pack(s->ctx, &keep[i], true, u->b, u->v + head * n * D));
    if (u->sums) WN_TRY(once_sums(s, u, &keep[i], u->sums + head * n));
  }
  if (u->wo && !once_projected(u)) WN_TRY(once_read_output(s, u->l, u->wo));
  if (!o->own.method) once_exchange(u, keep, parts, false);
  WN_TRY(once_score(s, u, keep, parts, false, at));
  const int64_t K = u->K < n ? u->K : n;
  for (int64_t g = 0; g < u->heads; g++) u->kept[g] = K;
  const int64_t safe = wn_once_ada_safe(&o->own.options, K);
  const int64_t stay = s->pins.count > 0 ? wn_policy_stay(&s->budgets, u->K) + 1 : 0;
  if (s->budgets.allot == WN_ALLOT_ADA)
    WN_TRY(wn_once_ada(s->ctx, u->scores, u->heads, n, K * u->heads, safe > stay ? safe : stay, u->kept));
  if (o->allotted) memcpy(u->kept, o->allotted + u->l * c->kv_heads + u->first, (size_t)u->heads * sizeof *u->kept);
  if (s->budgets.critical) WN_TRY(once_score(s, u, keep, parts, true, at));
  once_exchange(u, keep, parts, true);
  return WN_OK;
}

wn_status wn_session_once_score(struct wn_session *s, int64_t l, int64_t K, struct wn_kept *keep, int64_t parts) {
  const wn_model_config *c = &s->model->config;
  const struct wn_session_once *o = s->once;
  const int64_t D = c->head_size, group = c->heads / c->kv_heads, n = keep->cache->count;
  const bool sums = o->own.method && o->own.method->needs & WN_ONCE_SUMS;
  struct once_unit u = {.l = l, .n = n, .K = K, .first = s->parts[keep->cache - s->caches].kv0};
  struct wn_arrays arrays = {0};
  wn_status status = WN_OK;
  int32_t *at;
  for (int64_t i = 0; i < parts; i++) u.heads += keep[i].cache->shape.Hkv;
  if (o->own.known && o->own.known->n == n && s->position == n && u.heads == c->kv_heads) u.known = o->own.known;
  const struct wn_array of[] = {
      WN_ARRAY_FOR(u.k, "keys", true, WN_DIMS(u.heads, n, D)),
      WN_ARRAY_FOR(u.v, "values", true, WN_DIMS(u.heads, n, D)),
      WN_ARRAY_FOR(u.q, "queries", true, WN_DIMS(once_window(o), u.heads * group, D)),
      WN_ARRAY_FOR(u.wo, "the output projection", s->budgets.critical, WN_DIMS(c->width, c->heads * D)),
      WN_ARRAY_FOR(u.sums, "sums", sums, WN_DIMS(u.heads, n)),
      WN_ARRAY_FOR(u.scores, "scores", true, WN_DIMS(u.heads, n)),
      WN_ARRAY_FOR(u.norms, "norms of projected values", s->budgets.critical, WN_DIMS(u.heads, n)),
      WN_ARRAY_FOR(u.kept, "numbers of tokens", true, WN_DIMS(u.heads)),
      WN_ARRAY_FOR(at, "positions", true, WN_DIMS(n)),
  };
  WN_TRY(WN_ARRAYS_CREATE(s->ctx, &arrays, "a method", of));
  for (u.b = 0; u.b < s->B && status == WN_OK; u.b++) status = once_run(s, &u, keep, parts, at);
  wn_arrays_clear(&arrays);
  return status;
}

/* ---- how many tokens stay ---- */

int64_t wn_session_compressed_budget(const struct wn_session *s, const struct wn_session_part *part) {
  const wn_budgets *b = &s->budgets;
  const int64_t own = wn_budgets_of(b, part->layer, part->kv0);
  const double real = b->share > 0 ? (double)s->position * b->share : (double)own;
  const int64_t whole = real > 1 ? (int64_t)real : 1;
  if (b->allot != WN_ALLOT_PYRAMID) return whole;
  const struct wn_session_once *o = s->once;
  const int64_t rows = !o->own.method        ? wn_policy_recent(b, whole)
                       : o->own.method->rows ? o->own.method->rows(&o->own.options)
                                             : 0;
  const int64_t kept = wn_once_pyramid(&o->own.options, part->layer, b->layers, s->position, real, rows);
  return kept > 1 ? kept : 1;
}
