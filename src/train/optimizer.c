/* Optimizers over the tensors that learn: all tensors of a model, some of them, or others from which the model's are
 * made (LoRA). Each tensor is updated by a call of the AdamW or Adagrad operation of its own (with Muon, the layers'
 * projections by muon.c), with its own `decay`, `lr` and clipping:
 *
 *   s_t = min(1, clip_tensor / |g_t|) for each module (Sukhbaatar et al. 2019, section 3); q, k and v are modules that
 *   share a tensor
 *   s = min(1, clip / sqrt(sum (s_t |g_t|)^2)) for the whole gradient
 *
 * The update uses g_t * s_t * s. Adagrad's sum of squares, however, uses g_t * s, so that s_t shortens a module's step.
 * If s_t were in both it would cancel, and the paper's rate of 0.07 would move every weight by 0.07 at first, which no
 * model survives (docs/results/character-level.md). Padding between tensors is never touched and stays zero. Cost: one
 * pass over the gradients for the norms, one over gradients, parameters and state. */
#include "train/optimizer.h"

#include <stdio.h>

#include "dist/dist.h"

enum { MODULES = 3 }; /* the most modules of a tensor */

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

/* Adds `count` elements to the total, padded. False: too many. */
static bool optimizer_add(size_t count, size_t *total) {
  size_t padded;
  return wn_add_size(count, 15, &padded) && wn_add_size(*total, padded & ~(size_t)15, total);
}

/* The first element of module k of a tensor, and how many it has. */
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

/* Cuts all rows into pieces, in order; out NULL: only counts them. */
static int optimizer_cut(const struct wn_optimizer *opt, size_t most, struct wn_optimizer_piece *out) {
  int n = 0;
  for (int i = 0; i < opt->count; i++)
    for (int k = 0; k < MODULES; k++) {
      size_t count;
      const size_t first = optimizer_module(&opt->rows[i], k, &count), each = opt->rows[i].matrix ? count : most;
      for (size_t done = 0; done < count; n++) {
        const size_t now = count - done < each ? count - done : each;
        if (out) out[n] = (struct wn_optimizer_piece){.row = i, .module = k, .first = first + done, .count = now};
        done += now;
      }
    }
  return n;
}

/* Divides each bucket's pieces among the processes, in order and by number of elements. The first process differs from
 * bucket to bucket. */
static void optimizer_divide(struct wn_optimizer *opt, const int *bucket) {
  if (opt->size == 1) return;
  int buckets = 1;
  for (int i = 0; bucket && i < opt->count; i++)
    if (bucket[i] >= buckets) buckets = bucket[i] + 1;
  for (int b = 0; b < buckets; b++) {
    size_t all = 0, before = 0;
    for (int p = 0; p < opt->piece_count; p++)
      if (!bucket || bucket[opt->pieces[p].row] == b) all += opt->pieces[p].count;
    for (int p = 0; p < opt->piece_count; p++) {
      struct wn_optimizer_piece *piece = &opt->pieces[p];
      if (bucket && bucket[piece->row] != b) continue;
      const double middle = (double)before + (double)piece->count / 2;
      piece->owner = ((int)(middle * opt->size / (double)all) + b) % opt->size;
      before += piece->count;
    }
  }
}

/* Places this process's pieces in m and v. With one process the pieces of a tensor are contiguous. */
static bool optimizer_place(struct wn_optimizer *opt) {
  bool fits = true;
  for (int p = 0, row = -1; p < opt->piece_count && fits; p++) {
    struct wn_optimizer_piece *piece = &opt->pieces[p];
    const struct wn_optimizer_row *of = &opt->rows[piece->row];
    if (piece->owner != opt->rank) continue;
    const bool begins = opt->size > 1 || piece->row != row;
    const size_t n = opt->size > 1 ? piece->count : of->count;
    const struct wn_optimizer_piece *last = piece - 1;
    piece->at = begins ? opt->total : last->at + last->count;
    piece->at_v = begins ? opt->total_v : last->at_v + last->count;
    if (begins) fits = optimizer_add(n, &opt->total) && (of->matrix || optimizer_add(n, &opt->total_v));
    row = piece->row;
  }
  return fits;
}

static wn_status optimizer_pieces(wn_context *ctx, struct wn_optimizer *opt, const struct wn_optimizer_share *share) {
  const size_t most = share ? share->most : SIZE_MAX;
  opt->rank = share ? share->rank : 0;
  opt->size = share ? share->size : 1;
  opt->piece_count = optimizer_cut(opt, most, NULL);
  WN_TRY(WN_ALLOC(ctx, "optimizer pieces", opt->piece_count, &opt->pieces));
  optimizer_cut(opt, most, opt->pieces);
  optimizer_divide(opt, share ? share->bucket : NULL);
  return optimizer_place(opt) ? WN_OK
                              : wn_fail(ctx, WN_ERR_MEMORY, "optimizer state: %zu elements are too many", opt->total);
}

/* The scratch of the operations that update rows. */
static size_t optimizer_scratch(struct wn_optimizer *opt) {
  size_t scratch = 0;
  for (int i = 0; i < opt->count; i++) {
    const struct wn_optimizer_row *row = &opt->rows[i];
    const int64_t n = (int64_t)row->count;
    size_t sizes[] = {wn_op_sumsq_scratch(&opt->exec, &(struct wn_sumsq){.n = n}, false),
                      wn_op_adamw_scratch(&opt->exec, &(struct wn_adamw){.n = n}, false),
                      wn_op_adagrad_scratch(&opt->exec, &(struct wn_adagrad){.n = n}, false)};
    for (int k = 0; k < 3; k++)
      if (sizes[k] > scratch) scratch = sizes[k];
    for (int k = 0; row->matrix && k < MODULES; k++) {
      size_t count;
      optimizer_module(row, k, &count);
      if (count > 0) wn_muon_count(&opt->muon, &opt->exec, (int64_t)count / row->shape[1], row->shape[1]);
    }
  }
  return opt->muon.scratch > scratch ? opt->muon.scratch : scratch;
}

wn_status wn_optimizer_init(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind,
                            const struct wn_optimizer_row *rows, int count, const struct wn_optimizer_share *share,
                            struct wn_optimizer *opt) {
  memset(opt, 0, sizeof *opt);
  WN_TRY(wn_model_need_float(ctx, model, "training"));
  opt->model = model;
  opt->kind = kind;
  opt->exec = (struct wn_exec){.ctx = ctx, .backend = model->backend, .threads = ctx->threads, .dtype = model->dtype};
  if (count < 1) return wn_fail(ctx, WN_ERR_CONFIG, "train: no parameter is left to learn");
  WN_TRY(WN_ALLOC(ctx, "optimizer rows", count, &opt->rows));
  opt->count = count;
  memcpy(opt->rows, rows, (size_t)count * sizeof *rows);
  bool matrices = false;
  for (int i = 0; i < count; i++) {
    opt->rows[i].matrix = opt->rows[i].matrix && kind == WN_OPT_MUON;
    matrices = matrices || opt->rows[i].matrix;
  }
  if (kind == WN_OPT_MUON && !matrices)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "train.optimizer \"muon\" is for the layers' projections, of which none is left to learn here");
  WN_TRY(optimizer_pieces(ctx, opt, share));
  const size_t scratch = optimizer_scratch(opt);
  const struct wn_array arrays[] = {
      WN_ARRAY_SIZED(opt->m, element(opt), "first moment", kind != WN_OPT_ADAGRAD, WN_DIMS((int64_t)opt->total)),
      WN_ARRAY_SIZED(opt->v, element(opt), "second moment", true, WN_DIMS((int64_t)opt->total_v)),
      WN_ARRAY_SIZED(opt->muon.x, element(opt), "orthogonal momentum", true, WN_DIMS(opt->muon.most)),
      WN_ARRAY_SIZED(opt->muon.y, element(opt), "its next iterate", true, WN_DIMS(opt->muon.most)),
      WN_ARRAY_SIZED(opt->muon.a, element(opt), "its square", true, WN_DIMS(opt->muon.least)),
      WN_ARRAY_SIZED(opt->muon.b, element(opt), "its fourth power", true, WN_DIMS(opt->muon.least)),
      WN_ARRAY_FOR(opt->muon.sum, "its sum of squares", opt->muon.most > 0, WN_DIMS(1)),
      WN_ARRAY_FOR(opt->sums, "sums of squares", true, WN_DIMS(opt->piece_count)),
      WN_ARRAY_SIZED(opt->exec.scratch, 1, "scratch", true, WN_DIMS((int64_t)scratch)),
  };
  const struct wn_array own[] = {WN_ARRAY_FOR(opt->norms, "gradient norms", true, WN_DIMS(count, MODULES)),
                                 WN_ARRAY_FOR(opt->squares, "squares", true, WN_DIMS(opt->piece_count))};
  WN_TRY(WN_ARRAYS_CREATE_IN(ctx, model->backend->memory, &opt->arrays, "optimizer state", arrays));
  WN_TRY(WN_ARRAYS_CREATE(ctx, &opt->own, "gradient norms", own));
  opt->exec.scratch_bytes = scratch;
  return WN_OK;
}

bool wn_optimizer_has_moment(const struct wn_optimizer *opt, int i, int which) {
  return which == 0 ? opt->kind != WN_OPT_ADAGRAD : !opt->rows[i].matrix;
}

/* The part of a moment that belongs to one of this process's pieces. */
static void *optimizer_piece_moment(const struct wn_optimizer *opt, const struct wn_optimizer_piece *piece, int which) {
  return which == 0 ? optimizer_at(opt, opt->m, piece->at) : optimizer_at(opt, opt->v, piece->at_v);
}

/* The first of row i's pieces, which are consecutive. */
static int optimizer_first_piece(const struct wn_optimizer *opt, int i) {
  int from = 0, to = opt->piece_count;
  while (from < to) {
    const int middle = from + (to - from) / 2;
    if (opt->pieces[middle].row < i)
      from = middle + 1;
    else
      to = middle;
  }
  return from;
}

wn_status wn_optimizer_moment_collect(const struct wn_optimizer *opt, int i, int which, void *out) {
  wn_context *ctx = opt->exec.ctx;
  for (int p = optimizer_first_piece(opt, i); p < opt->piece_count && opt->pieces[p].row == i; p++) {
    const struct wn_optimizer_piece *piece = &opt->pieces[p];
    const size_t bytes = piece->count * element(opt);
    if (opt->rank != 0 && opt->rank != piece->owner) continue;
    if (opt->rank != 0)
      WN_TRY(wn_dist_send_array(ctx, opt->model->backend->memory, optimizer_piece_moment(opt, piece, which), bytes, 0));
    else if (piece->owner != 0)
      WN_TRY(wn_dist_receive_whole(ctx, optimizer_at(opt, out, piece->first), bytes, piece->owner));
    else
      WN_TRY(wn_memory_read(ctx, opt->model->backend->memory, optimizer_at(opt, out, piece->first),
                            optimizer_piece_moment(opt, piece, which), bytes));
  }
  return WN_OK;
}

wn_status wn_optimizer_moment_restore(struct wn_optimizer *opt, int i, int which, const void *whole) {
  for (int p = optimizer_first_piece(opt, i); p < opt->piece_count && opt->pieces[p].row == i; p++) {
    const struct wn_optimizer_piece *piece = &opt->pieces[p];
    if (piece->owner != opt->rank) continue;
    WN_TRY(opt->model->backend->memory->copy_in(opt->exec.ctx, optimizer_piece_moment(opt, piece, which),
                                                optimizer_at(opt, whole, piece->first), piece->count * element(opt)));
  }
  return WN_OK;
}

void wn_optimizer_clear(struct wn_optimizer *opt) {
  wn_arrays_clear(&opt->arrays);
  wn_arrays_clear(&opt->own);
  wn_free(opt->rows);
  wn_free(opt->pieces);
  memset(opt, 0, sizeof *opt);
}

wn_status wn_optimizer_measure(struct wn_optimizer *opt, const void *grads, double *norm) {
  double total = 0;
  wn_context *ctx = opt->exec.ctx;
  for (int p = 0; p < opt->piece_count; p++) {
    const struct wn_optimizer_piece *piece = &opt->pieces[p];
    const struct wn_sumsq args = {.n = (int64_t)piece->count,
                                  .x = optimizer_at(opt, grads, opt->rows[piece->row].grad_at + piece->first),
                                  .out = opt->sums + p};
    if (piece->owner == opt->rank) WN_TRY(wn_op_sumsq_forward(&opt->exec, &args)); /* those of other processes stay 0 */
  }
  WN_TRY(wn_memory_read(ctx, opt->model->backend->memory, opt->squares, opt->sums,
                        (size_t)opt->piece_count * sizeof *opt->squares));
  WN_TRY(wn_dist_merge(ctx, opt->squares, opt->size > 1 ? (size_t)opt->piece_count : 0));
  memset(opt->norms, 0, (size_t)(MODULES * opt->count) * sizeof *opt->norms);
  for (int p = 0; p < opt->piece_count; p++)
    opt->norms[MODULES * opt->pieces[p].row + opt->pieces[p].module] += opt->squares[p];
  for (int i = 0; i < MODULES * opt->count; i++) { /* modules that do not exist: 0 */
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

/* Updates one piece. global, module: factors of its gradient. */
static wn_status step_piece(const struct step *s, const struct wn_optimizer_piece *piece, double global,
                            double module) {
  struct wn_optimizer *opt = s->opt;
  const struct wn_optimizer_row *row = &opt->rows[piece->row];
  const size_t first = piece->first, count = piece->count;
  const wn_train_config *config = s->config;
  const double decay = row->decay && row->range == WN_RANGE_ALL ? config->weight_decay : 0, scale = global * module;
  void *p = (char *)row->p + first * element(opt);
  const void *g = optimizer_at(opt, s->grads, row->grad_at + first);
  if (row->matrix) {
    const struct wn_muon_matrix matrix = {.rows = (int64_t)count / row->shape[1],
                                          .columns = row->shape[1],
                                          .p = p,
                                          .g = g,
                                          .m = optimizer_at(opt, opt->m, piece->at),
                                          .lr = s->muon_lr * row->lr,
                                          .decay = decay,
                                          .scale = scale};
    return wn_muon_step(&opt->exec, &opt->muon, config, &matrix);
  }
  void *v = optimizer_at(opt, opt->v, piece->at_v);
  if (opt->kind != WN_OPT_ADAGRAD) {
    const struct wn_adamw args = {.n = (int64_t)count,
                                  .p = p,
                                  .g = g,
                                  .m = optimizer_at(opt, opt->m, piece->at),
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
                                  .lr = s->lr * row->lr * module,
                                  .eps = config->eps,
                                  .weight_decay = decay / module,
                                  .grad_scale = global};
  return wn_op_adagrad_forward(&opt->exec, &args);
}

wn_status wn_optimizer_apply(struct wn_optimizer *opt, const wn_train_config *config, const void *grads, double lr,
                             double muon_lr, int64_t number) {
  const struct step step = {
      .opt = opt, .config = config, .grads = grads, .lr = lr, .muon_lr = muon_lr, .number = number};
  double global = 1;
  if (config->clip > 0) {
    double total = 0;
    for (int i = 0; i < MODULES * opt->count; i++) {
      double norm = opt->norms[i] * module_scale(config, opt->norms[i]);
      total += norm * norm;
    }
    if (sqrt(total) > config->clip) global = config->clip / sqrt(total);
  }
  for (int p = 0; p < opt->piece_count; p++) {
    const struct wn_optimizer_piece *piece = &opt->pieces[p];
    const struct wn_optimizer_row *row = &opt->rows[piece->row];
    if (piece->owner != opt->rank) continue;
    WN_TRY(step_piece(&step, piece, global, module_scale(config, opt->norms[MODULES * piece->row + piece->module])));
    /* Ratios are clamped to [0,1], since a span lies between 0 and the limit (Sukhbaatar et al. 2019). Strengths are
     * clamped to 0 and above. */
    const struct wn_clamp kept = {.n = (int64_t)piece->count,
                                  .high = row->range == WN_RANGE_RATIO ? 1 : INFINITY,
                                  .x = optimizer_at(opt, row->p, piece->first)};
    if (row->range != WN_RANGE_ALL) WN_TRY(wn_op_clamp_forward(&opt->exec, &kept));
  }
  return WN_OK;
}
