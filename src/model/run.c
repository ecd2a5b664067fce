/* A pass over a model. Operations either run, or (measuring) only report the scratch that they will need. */
#include "model/run.h"

#include <string.h>

#include "attention/registry.h"

void wn_run_init(struct wn_run *run, const struct wn_model *model, int64_t B, int64_t T) {
  memset(run, 0, sizeof *run);
  run->model = model;
  run->exec = (struct wn_exec){.ctx = model->ctx,
                               .backend = model->backend,
                               .threads = model->ctx->threads,
                               .dtype = model->dtype,
                               .exact_rows = model->ctx->exact_rows};
  run->types = wn_layer_types_of(model->dtype);
  run->B = B;
  run->T = T;
  run->rotary = &model->rotary;
}

const struct wn_packed *wn_run_packed(const struct wn_run *run, int row) {
  return row >= 0 && run->model->table.rows[row].packed.count ? &run->model->table.rows[row].packed : NULL;
}

void *wn_run_param(const struct wn_run *run, int row) {
  if (row < 0 || wn_run_packed(run, row)) return NULL;
  return wn_element(run->model->params, (int64_t)run->model->table.rows[row].offset, run->exec.dtype);
}

void *wn_run_grad(const struct wn_run *run, int row) {
  if (row < 0 || !run->grads || wn_run_packed(run, row)) return NULL;
  const size_t at = run->grad_at ? run->grad_at[row] : run->model->table.rows[row].offset;
  return at == WN_NO_GRADIENT ? NULL : wn_element(run->grads, (int64_t)at, run->exec.dtype);
}

static bool run_begun(const struct wn_run *run, int row) {
  return row < 0 || !run->begun || run->begun[row];
}

wn_status wn_run_zero(const struct wn_run *run, void *to, int64_t n) {
  if (run->measuring) return WN_OK;
  return wn_run_memory(run)->zero(run->exec.ctx, to, (size_t)n * wn_dtype_size(run->exec.dtype));
}

wn_status wn_run_copy(const struct wn_run *run, void *to, const void *from, int64_t n) {
  if (run->measuring || to == from) return WN_OK;
  return wn_run_memory(run)->copy(run->exec.ctx, to, from, (size_t)n * wn_dtype_size(run->exec.dtype));
}

wn_status wn_run_grad_begin(struct wn_run *run, int row) {
  if (run_begun(run, row)) return WN_OK;
  void *at = wn_run_grad(run, row);
  if (at) WN_TRY(wn_run_zero(run, at, (int64_t)run->model->table.rows[row].count));
  run->begun[row] = 1;
  return WN_OK;
}

#define RUN_DIRECTION(name, args, direction, is_backward)                                                              \
  wn_status wn_run_##name##_##direction(struct wn_run *run, const args *a) {                                           \
    if (!run->measuring) return wn_op_##name##_##direction(&run->exec, a);                                             \
    const size_t need = wn_op_##name##_scratch(&run->exec, a, is_backward);                                            \
    if (need > run->need) run->need = need;                                                                            \
    return WN_OK;                                                                                                      \
  }
#define RUN_DEFINE(name, args, has_backward)                                                                           \
  RUN_DIRECTION(name, args, forward, false)                                                                            \
  RUN_DIRECTION(name, args, backward, true)
WN_OPS(RUN_DEFINE)

wn_status wn_run_open(const struct wn_run *run, const void *x, int64_t n, void **out) {
  return wn_memory_open(run->exec.ctx, wn_run_memory(run), "activations that are looked at", x,
                        (size_t)n * wn_dtype_size(run->exec.dtype), out);
}

void wn_run_close(const struct wn_run *run, void *opened) {
  (void)wn_memory_close(run->exec.ctx, wn_run_memory(run), NULL, 0, opened, false); /* nothing has changed */
}

wn_status wn_run_dropout(struct wn_run *run, int64_t place, void *x) {
  if (run->dropout <= 0) return WN_OK;
  return wn_run_dropout_forward(run, &(struct wn_dropout){.n = run->B * run->T * run->model->config.width,
                                                          .p = run->dropout,
                                                          .seed = run->seed,
                                                          .stream = run->stream + (uint64_t)place,
                                                          .x = x});
}

wn_status wn_run_branch(struct wn_run *run, int64_t place, void *x) {
  const wn_model_config *c = &run->model->config;
  WN_TRY(wn_run_dropout(run, place, x));
  if (c->residual_scale <= 0) return WN_OK;
  return wn_run_scale_forward(run,
                              &(struct wn_scale){.n = run->B * run->T * c->width, .factor = c->residual_scale, .x = x});
}

struct wn_norm wn_run_norm_args(const struct wn_run *run, int64_t rows, int64_t groups, int64_t width,
                                struct wn_norm_site at) {
  const wn_model_config *c = &run->model->config;
  return (struct wn_norm){.rows = rows,
                          .groups = groups,
                          .width = width,
                          .y_type = at.y_type,
                          .layer = c->norm == WN_NORM_LAYER,
                          .eps = c->norm_eps,
                          .gain = wn_run_param(run, at.gain),
                          .shift = wn_run_param(run, at.shift),
                          .rstd = at.rstd,
                          .mean = at.mean,
                          .dgain = wn_run_grad(run, at.gain),
                          .dshift = wn_run_grad(run, at.shift)};
}

struct wn_norm wn_head_norm_args(const struct wn_run *run, int64_t rows, int64_t heads, struct wn_norm_site site) {
  const wn_model_config *c = &run->model->config;
  const int64_t groups = c->qk_norm_whole ? 1 : heads;
  return wn_run_norm_args(run, rows, groups, heads / groups * c->head_size, site);
}

/* y = x, or y = sum = x + add. */
static wn_status run_without_norm(struct wn_run *run, int64_t n, const void *x, const void *add, void *sum, void *y) {
  if (add) WN_TRY(wn_run_add_forward(run, &(struct wn_add){.n = n, .x = x, .z = add, .y = sum}));
  return wn_run_copy(run, y, add ? sum : x, n);
}

wn_status wn_run_norm(struct wn_run *run, int64_t rows, struct wn_norm_site at, const void *x, const void *add,
                      void *sum, void *y) {
  const int64_t C = run->model->config.width;
  if (at.gain < 0) return run_without_norm(run, rows * C, x, add, sum, y);
  struct wn_norm a = wn_run_norm_args(run, rows, 1, C, at);
  a.x = x, a.ldx = C;
  if (add) a.add = add, a.ldadd = C, a.sum = sum, a.ldsum = C;
  a.y = y, a.ldy = C;
  return wn_run_norm_forward(run, &a);
}

wn_status wn_run_norm_grad(struct wn_run *run, int64_t rows, struct wn_norm_site at, const void *x, const void *dy,
                           void *dx, bool accumulate) {
  const int64_t C = run->model->config.width;
  if (at.gain < 0) return run_without_norm(run, rows * C, accumulate ? dx : dy, accumulate ? dy : NULL, dx, dx);
  struct wn_norm a = wn_run_norm_args(run, rows, 1, C, at);
  a.x = x, a.ldx = C;
  a.dy = dy, a.lddy = C, a.dx = dx, a.lddx = C;
  a.accumulate_dx = accumulate;
  return wn_run_norm_backward(run, &a);
}

struct wn_linear wn_run_projection(const struct wn_run *run, int64_t rows, int64_t K, int64_t N, int weight, int bias) {
  return (struct wn_linear){.M = rows,
                            .N = N,
                            .K = K,
                            .ldx = K,
                            .w = wn_run_param(run, weight),
                            .packed = wn_run_packed(run, weight),
                            .b = wn_run_param(run, bias),
                            .ldy = N,
                            .lddy = N,
                            .lddx = K,
                            .dw = wn_run_grad(run, weight),
                            .dw_fresh = !run_begun(run, weight),
                            .db = wn_run_grad(run, bias)};
}

bool wn_run_rows_next(const struct wn_run *run, int64_t M, struct wn_run_rows *r) {
  r->first += r->count;
  const int64_t left = M - r->first;
  r->apart = r->first < run->apart;
  r->count = r->apart ? run->apart : run->pieces && left > 0 ? run->pieces[r->pieces++] : left;
  if (r->count > left) r->count = left;
  return left > 0;
}

wn_status wn_run_project(struct wn_run *run, struct wn_linear a, const void *x, void *y) {
  const int64_t M = a.M;
  for (struct wn_run_rows r = {0}; wn_run_rows_next(run, M, &r);) {
    a.M = r.count, a.rows_apart = r.apart;
    a.x = wn_element(x, r.first * a.ldx, run->exec.dtype), a.y = wn_element(y, r.first * a.ldy, run->exec.dtype);
    WN_TRY(wn_run_linear_forward(run, &a));
  }
  return WN_OK;
}

/* Marks the gradient at address dw as initialised. */
static void run_begin(struct wn_run *run, const void *dw) {
  for (int row = 0; row < run->model->table.count; row++)
    if (!run->begun[row] && wn_run_grad(run, row) == dw) run->begun[row] = 1;
}

wn_status wn_run_project_back(struct wn_run *run, struct wn_linear a, const void *x, const void *dy, void *dx,
                              bool accumulate) {
  a.x = x, a.dy = dy, a.dx = dx;
  a.accumulate_dx = accumulate;
  WN_TRY(wn_run_linear_backward(run, &a));
  if (a.dw_fresh && !run->measuring) run_begin(run, a.dw);
  return WN_OK;
}
