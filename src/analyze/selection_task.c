/* What selection does on tasks where it is known which tokens a row still needs (winnow/selection.h). Cost: a forward
 * pass per sequence. */
#include <math.h>
#include <string.h>

#include "base/arrays.h"
#include "base/misuse.h"
#include "winnow/selection.h"

enum {
  TASK_FREE,
  TASK_SPENT,
  TASK_NEEDED,
  TASK_NAME = 4
}; /* the state of a token for a row; TASK_NAME: it is a variable's name */

struct task_watch {
  const wn_data_config *task;
  const int32_t *tokens; /* [T] of the current sequence */
  int64_t T;
  uint8_t *kind; /* [T,T] state of token j for row i */
  float *most;   /* [T,T] the largest F over layers */
  wn_task_selection *r;
};

/* Variable Assignment: assignments 0..n-1 and the query at row 2n. The last assignment to each variable is needed. */
static void task_assignments(struct task_watch *w) {
  uint8_t *kind = w->kind + (w->T - 1) * w->T;
  for (int64_t i = 0; i + 2 < w->T; i += 2) {
    bool replaced = false;
    for (int64_t k = i + 2; k + 2 < w->T; k += 2) replaced = replaced || w->tokens[k] == w->tokens[i];
    kind[i] = (replaced ? TASK_SPENT : TASK_NEEDED) | TASK_NAME;
    kind[i + 1] = replaced ? TASK_SPENT : TASK_NEEDED;
  }
}

/* Copy: BOS x1 .. xn EOI x1 .. xn EOS. Row n+1+k predicts x(k+1); x1 .. xk have been copied. */
static void task_copies(struct task_watch *w) {
  const int64_t n = (w->T - 3) / 2;
  for (int64_t k = 0; k < n; k++)
    for (int64_t j = 1; j <= n; j++) w->kind[(n + 1 + k) * w->T + j] = j <= k ? TASK_SPENT : TASK_NEEDED;
}

/* Parity: an even row i predicts the exclusive or of its own bit and the parity before it. */
static void task_parities(struct task_watch *w) {
  for (int64_t i = 2; i + 1 < w->T; i += 2)
    for (int64_t j = 1; j < i; j++) w->kind[i * w->T + j] = j == i - 1 ? TASK_NEEDED : TASK_SPENT;
}

static void task_add(wn_task_layer *to, uint8_t kind, double masked) {
  const bool spent = (kind & ~TASK_NAME) == TASK_SPENT, name = kind & TASK_NAME;
  wn_task_share *share = spent ? name ? &to->spent_names : &to->spent : name ? &to->needed_names : &to->needed;
  share->count++;
  share->selected += masked > 0.5;
  share->masked += masked;
}

static wn_status task_on_layer(void *user, const wn_selection_layer *layer) {
  struct task_watch *w = user;
  for (int64_t i = 0; i < layer->T; i++)
    for (int64_t j = 1; j < i; j++) { /* the first token is never masked */
      const int64_t k = i * layer->T + j;
      if (w->kind[k] == TASK_FREE) continue;
      task_add(&w->r->layer[layer->layer], w->kind[k], -expm1(-(double)layer->F[k]));
      if (layer->layer == 0 || layer->F[k] > w->most[k]) w->most[k] = layer->F[k];
    }
  return WN_OK;
}

static void task_share_finish(wn_task_share *share) {
  if (share->count == 0) return;
  share->selected /= (double)share->count;
  share->masked /= (double)share->count;
}

static void task_layer_finish(wn_task_layer *layer) {
  task_share_finish(&layer->spent), task_share_finish(&layer->needed);
  task_share_finish(&layer->spent_names), task_share_finish(&layer->needed_names);
}

/* Analyses one row of the source without its padding: the positions up to the last that counts, for Copy also the
 * end. */
static wn_status task_sequence(wn_context *ctx, wn_model *model, struct task_watch *w, const int32_t *targets,
                               int64_t T) {
  while (T > 1 && targets[T - 1] < 0) T--;
  if (w->task->kind == WN_DATA_COPY) T++; /* EOS follows the last predicting row */
  if (w->task->kind == WN_DATA_PARITY) T++;
  w->T = T;
  memset(w->kind, TASK_FREE, (size_t)(T * T));
  if (w->task->kind == WN_DATA_VARIABLE_ASSIGNMENT)
    task_assignments(w);
  else if (w->task->kind == WN_DATA_COPY)
    task_copies(w);
  else
    task_parities(w);
  const wn_selection_options options = {.size = sizeof options, .layer = task_on_layer, .user = w};
  WN_TRY(wn_analyze_selection(ctx, model, w->tokens, T, &options, NULL));
  for (int64_t i = 0; i < T; i++)
    for (int64_t j = 1; j < i; j++)
      if (w->kind[i * T + j] != TASK_FREE)
        task_add(&w->r->any, w->kind[i * T + j], -expm1(-(double)w->most[i * T + j]));
  return WN_OK;
}

wn_status wn_analyze_task_selection(wn_context *ctx, wn_model *model, const wn_data_config *task, uint64_t sequences,
                                    uint64_t seed, wn_task_selection **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(task), WN_POINTER(out));
  const wn_model_config *c = wn_model_config_get(model);
  int64_t V, T;
  *out = NULL;
  if (!c->attention.selective.enabled)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the model has no selective attention: nothing is selected away");
  if (task->kind != WN_DATA_VARIABLE_ASSIGNMENT && task->kind != WN_DATA_COPY && task->kind != WN_DATA_PARITY)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the data are no synthetic task: which tokens are needed is not known");
  wn_data_config_requirements(task, &V, &T);
  void *memory;
  WN_TRY(wn_alloc(ctx, "selection on a task", sizeof(wn_task_selection) + (size_t)c->layers * sizeof(wn_task_layer),
                  &memory));
  wn_task_selection *r = memory;
  *r = (wn_task_selection){.layers = c->layers, .sequences = sequences, .layer = (wn_task_layer *)(void *)(r + 1)};
  wn_data_source *source = NULL;
  struct wn_arrays arrays = {0};
  int32_t *tokens, *targets;
  struct task_watch w = {.task = task, .r = r};
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(tokens, "tokens", true, WN_DIMS(T)),
      WN_ARRAY_FOR(targets, "targets", true, WN_DIMS(T)),
      WN_ARRAY_FOR(w.kind, "kinds of tokens", true, WN_DIMS(T, T)),
      WN_ARRAY_FOR(w.most, "the largest F", true, WN_DIMS(T, T)),
  };
  wn_status status;
  WN_TRY_GOTO(wn_data_source_create(ctx, task, "val", T, (int32_t)c->vocab_size, &source), done);
  WN_TRY_GOTO(WN_ARRAYS_CREATE(ctx, &arrays, "selection on a task", rows), done);
  w.tokens = tokens;
  for (uint64_t i = 0; i < sequences; i++) {
    if (wn_context_cancelled(ctx)) WN_TRY_GOTO(wn_fail(ctx, WN_ERR_CANCELLED, "stopped"), done);
    WN_TRY_GOTO(wn_data_source_batch(ctx, source, seed, i, 1, tokens, targets, NULL), done);
    WN_TRY_GOTO(task_sequence(ctx, model, &w, targets, T), done);
  }
  for (int64_t l = 0; l < r->layers; l++) task_layer_finish(&r->layer[l]);
  task_layer_finish(&r->any);
  status = WN_OK;
done:
  wn_data_source_destroy(source);
  wn_arrays_clear(&arrays);
  if (status == WN_OK)
    *out = r;
  else
    wn_task_selection_destroy(r);
  return status;
}

void wn_task_selection_destroy(wn_task_selection *selection) {
  wn_free(selection);
}
