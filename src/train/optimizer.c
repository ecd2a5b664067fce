/* Optimizers over the tensors that learn: all of a model's, some of them, or others that the model's are made of. Each
 * is one call of the AdamW or Adagrad operation (with Muon the layers' projections are not: muon.c), so that weight
 * decay follows its `decay`, the rate its `lr`, and clipping by module has its own factors: s_t = min(1, clip_tensor /
 * |g_t|)                each module (Sukhbaatar et al. 2019, section 3), of which q, k and v share one tensor here s =
 * min(1, clip / sqrt(sum (s_t |g_t|)^2))     the whole gradient and the update uses g_t * s_t * s. Padding between
 * tensors is never touched and stays zero. Cost: one pass over the gradients for the norms, one over gradients,
 * parameters and state. */
#include "train/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MODULES = 3 }; /* of a tensor, at most */

static size_t element(const struct wn_optimizer *opt) {
  return wn_dtype_size(opt->model->dtype);
}

static void *optimizer_at(const struct wn_optimizer *opt, const void *array, size_t offset) {
  return (char *)array + offset * element(opt);
}

struct wn_optimizer_row wn_optimizer_row_of(const struct wn_model *model, int i) {
  const struct wn_param *row = &model->table.rows[i];
  struct wn_optimizer_row out = {.p = (char *)model->params + row->offset * wn_dtype_size(model->dtype),
                                 .grad_at = row->offset,
                                 .count = row->count,
                                 .ndim = row->ndim,
                                 .matrix = row->matrix,
                                 .decay = row->decay,
                                 .range = row->range,
                                 .lr = 1};
  snprintf(out.name, sizeof out.name, "%s", row->name);
  memcpy(out.shape, row->shape, sizeof out.shape);
  for (int k = 0; k < MODULES && row->shape[0] > 0; k++)
    out.part[k] = (size_t)row->module[k] * (row->count / (size_t)row->shape[0]);
  return out;
}

wn_status wn_optimizer_init(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind, struct wn_optimizer *opt) {
  void *memory;
  memset(opt, 0, sizeof *opt);
  WN_TRY(wn_alloc(ctx, "optimizer rows", (size_t)model->table.count * sizeof *opt->rows, &memory));
  struct wn_optimizer_row *rows = memory;
  for (int i = 0; i < model->table.count; i++) rows[i] = wn_optimizer_row_of(model, i);
  const wn_status status = wn_optimizer_init_rows(ctx, model, kind, rows, model->table.count, opt);
  wn_free(rows);
  return status;
}

/* Room for `count` elements after those so far. */
static bool optimizer_add(size_t count, size_t *total) {
  size_t padded;
  return wn_add_size(count, 15, &padded) && wn_add_size(*total, padded & ~(size_t)15, total);
}

/* Elements of module k of a tensor, the first of them. */
static size_t optimizer_module(const struct wn_optimizer_row *row, int k, size_t *count) {
  if (row->part[0] == 0) {
    *count = k == 0 ? row->count : 0;
    return 0;
  }
  size_t first = 0;
  for (int i = 0; i < k; i++) first += row->part[i];
  *count = row->part[k];
  return first;
}

wn_status wn_optimizer_init_rows(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind,
                                 const struct wn_optimizer_row *rows, int count, struct wn_optimizer *opt) {
  memset(opt, 0, sizeof *opt);
  WN_TRY(wn_model_need_float(ctx, model, "training"));
  opt->model = model;
  opt->kind = kind;
  opt->exec = (struct wn_exec){.ctx = ctx, .backend = model->backend, .threads = ctx->threads, .dtype = model->dtype};
  if (count < 1) return wn_fail(ctx, WN_ERR_CONFIG, "train: no parameter is left to learn");
  void *memory;
  WN_TRY(wn_alloc(ctx, "optimizer rows", (size_t)count * sizeof *rows, &memory));
  opt->rows = memory;
  opt->count = count;
  memcpy(opt->rows, rows, (size_t)count * sizeof *rows);
  size_t scratch = 0;
  bool fits = true, matrices = false;
  for (int i = 0; i < count; i++) {
    int64_t n = (int64_t)rows[i].count;
    size_t sizes[] = {wn_op_sumsq_scratch(&opt->exec, &(struct wn_sumsq){.n = n}, false),
                      wn_op_adamw_scratch(&opt->exec, &(struct wn_adamw){.n = n}, false),
                      wn_op_adagrad_scratch(&opt->exec, &(struct wn_adagrad){.n = n}, false)};
    for (int k = 0; k < 3; k++)
      if (sizes[k] > scratch) scratch = sizes[k];
    struct wn_optimizer_row *row = &opt->rows[i];
    row->matrix = row->matrix && kind == WN_OPT_MUON;
    row->at = opt->total;
    row->at_v = opt->total_v;
    fits = fits && optimizer_add(row->count, &opt->total) && (row->matrix || optimizer_add(row->count, &opt->total_v));
    for (int k = 0; row->matrix && k < MODULES; k++) {
      size_t count;
      optimizer_module(row, k, &count);
      if (count > 0) wn_muon_count(&opt->muon, &opt->exec, (int64_t)count / row->shape[1], row->shape[1]);
    }
    matrices = matrices || row->matrix;
  }
  if (kind == WN_OPT_MUON && !matrices)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "train.optimizer \"muon\" is for the layers' projections, of which none is left to learn here");
  if (opt->muon.scratch > scratch) scratch = opt->muon.scratch;
  if (!fits) return wn_fail(ctx, WN_ERR_MEMORY, "optimizer state: %zu elements are too many", opt->total);
  const struct wn_array arrays[] = {
      {"first moment", kind != WN_OPT_ADAGRAD, WN_DIMS((int64_t)opt->total), element(opt), &opt->m},
      {"second moment", true, WN_DIMS((int64_t)opt->total_v), element(opt), &opt->v},
      {"orthogonal momentum", true, WN_DIMS(opt->muon.most), element(opt), &opt->muon.x},
      {"its next iterate", true, WN_DIMS(opt->muon.most), element(opt), &opt->muon.y},
      {"its square", true, WN_DIMS(opt->muon.least), element(opt), &opt->muon.a},
      {"its fourth power", true, WN_DIMS(opt->muon.least), element(opt), &opt->muon.b},
      {"its sum of squares", opt->muon.most > 0, WN_DIMS(1), sizeof *opt->muon.sum, &opt->muon.sum},
      {"sums of squares", true, WN_DIMS(count, MODULES), sizeof *opt->sums, &opt->sums},
      {"scratch", true, WN_DIMS((int64_t)scratch), 1, &opt->exec.scratch},
  };
  const struct wn_array own[] = {{"gradient norms", true, WN_DIMS(count, MODULES), sizeof *opt->norms, &opt->norms}};
  WN_TRY(WN_ARRAYS_CREATE_IN(ctx, model->backend->memory, &opt->arrays, "optimizer state", arrays));
  WN_TRY(WN_ARRAYS_CREATE(ctx, &opt->own, "gradient norms", own));
  opt->exec.scratch_bytes = scratch;
  return WN_OK;
}

void *wn_optimizer_moment(const struct wn_optimizer *opt, int i, int which) {
  const struct wn_optimizer_row *row = &opt->rows[i];
  if (which == 0) return opt->m ? optimizer_at(opt, opt->m, row->at) : NULL;
  return row->matrix ? NULL : optimizer_at(opt, opt->v, row->at_v);
}

void wn_optimizer_clear(struct wn_optimizer *opt) {
  wn_arrays_clear(&opt->arrays);
  wn_arrays_clear(&opt->own);
  wn_free(opt->rows);
  memset(opt, 0, sizeof *opt);
}

wn_status wn_optimizer_measure(struct wn_optimizer *opt, const void *grads, double *norm) {
  double total = 0;
  wn_context *ctx = opt->exec.ctx;
  for (int i = 0; i < opt->count; i++) {
    const struct wn_optimizer_row *row = &opt->rows[i];
    for (int k = 0; k < MODULES; k++) {
      size_t count;
      const size_t first = optimizer_module(row, k, &count);
      const struct wn_sumsq args = {
          .n = (int64_t)count, .x = optimizer_at(opt, grads, row->grad_at + first), .out = opt->sums + MODULES * i + k};
      if (count > 0) WN_TRY(wn_op_sumsq_forward(&opt->exec, &args));
    }
  }
  WN_TRY(wn_memory_read(ctx, opt->model->backend->memory, opt->norms, opt->sums,
                        (size_t)(MODULES * opt->count) * sizeof(double)));
  for (int i = 0; i < MODULES * opt->count; i++) { /* modules that are not there: 0 */
    total += opt->norms[i];
    opt->norms[i] = sqrt(opt->norms[i]);
  }
  *norm = sqrt(total);
  return WN_OK;
}

static double module_scale(const wn_train_config *config, double norm) {
  return config->clip_tensor > 0 && norm > config->clip_tensor ? config->clip_tensor / norm : 1;
}

/* An update. */
struct step {
  struct wn_optimizer *opt;
  const wn_train_config *config;
  const void *grads;
  double lr, muon_lr;
  int64_t number;
};

/* `count` elements of a tensor from `first` on; scale: of their gradient. */
static wn_status step_part(const struct step *s, const struct wn_optimizer_row *row, size_t first, size_t count,
                           double scale) {
  struct wn_optimizer *opt = s->opt;
  const wn_train_config *config = s->config;
  const double decay = row->decay && row->range == WN_RANGE_ALL ? config->weight_decay : 0;
  void *p = (char *)row->p + first * element(opt);
  const void *g = optimizer_at(opt, s->grads, row->grad_at + first);
  if (row->matrix) {
    const struct wn_muon_matrix matrix = {.rows = (int64_t)count / row->shape[1],
                                          .columns = row->shape[1],
                                          .p = p,
                                          .g = g,
                                          .m = optimizer_at(opt, opt->m, row->at + first),
                                          .lr = s->muon_lr * row->lr,
                                          .decay = decay,
                                          .scale = scale};
    return wn_muon_step(&opt->exec, &opt->muon, config, &matrix);
  }
  void *v = optimizer_at(opt, opt->v, row->at_v + first);
  if (opt->kind != WN_OPT_ADAGRAD) {
    const struct wn_adamw args = {.n = (int64_t)count,
                                  .p = p,
                                  .g = g,
                                  .m = optimizer_at(opt, opt->m, row->at + first),
                                  .v = v,
                                  .lr = s->lr * row->lr,
                                  .beta1 = config->beta1,
                                  .beta2 = config->beta2,
                                  .eps = config->eps,
                                  .weight_decay = decay,
                                  .grad_scale = scale,
                                  .step = s->number};
    return wn_op_adamw_forward(&opt->exec, &args);
  }
  const struct wn_adagrad args = {.n = (int64_t)count,
                                  .p = p,
                                  .g = g,
                                  .v = v,
                                  .lr = s->lr * row->lr,
                                  .eps = config->eps,
                                  .weight_decay = decay,
                                  .grad_scale = scale};
  return wn_op_adagrad_forward(&opt->exec, &args);
}

wn_status wn_optimizer_apply(struct wn_optimizer *opt, const wn_train_config *config, const void *grads, double lr,
                             int64_t number) {
  /* the matrices' rate has the schedule of the other */
  const double muon_lr = config->lr > 0 ? config->muon.lr * (lr / config->lr) : 0;
  const struct step step = {opt, config, grads, lr, muon_lr, number};
  double global = 1;
  if (config->clip > 0) {
    double total = 0;
    for (int i = 0; i < MODULES * opt->count; i++) {
      double norm = opt->norms[i] * module_scale(config, opt->norms[i]);
      total += norm * norm;
    }
    if (sqrt(total) > config->clip) global = config->clip / sqrt(total);
  }
  for (int i = 0; i < opt->count; i++) {
    const struct wn_optimizer_row *row = &opt->rows[i];
    for (int k = 0; k < MODULES; k++) {
      size_t count;
      const size_t first = optimizer_module(row, k, &count);
      const double scale = global * module_scale(config, opt->norms[MODULES * i + k]);
      if (count > 0) WN_TRY(step_part(&step, row, first, count, scale));
    }
    /* Ratios stay in [0,1]: a span is between nothing and the limit (Sukhbaatar et al. 2019). Strengths stay at 0 or
     * above. */
    const struct wn_clamp kept = {
        .n = (int64_t)row->count, .high = row->range == WN_RANGE_RATIO ? 1 : INFINITY, .x = row->p};
    if (row->range != WN_RANGE_ALL) WN_TRY(wn_op_clamp_forward(&opt->exec, &kept));
  }
  return WN_OK;
}
