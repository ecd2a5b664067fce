/* Evaluation: the mean negative log-likelihood of the counted positions, sums in double.
 *   perplexity = exp(loss);  bits per byte = loss sum / (ln 2 * bytes of text)
 * A text is cut into blocks as long as the context. Every token after the first is predicted exactly once, from the
 * tokens before it in its block. So a block's first tokens have little context; a stride shorter than the block would
 * give lower losses at a multiple of the cost. The last block is shorter and padded with positions that do not count.
 * With segment recurrence earlier blocks are seen too, as far as the cache goes: a text is cut into as many stretches
 * as the batch has sequences, and each sequence reads its own from the beginning.
 * Fewer batches than all read rows spread evenly: consecutive rows of one text are alike, and the error that their
 * spread gives would be too small for the whole (docs/results/errors.md). With recurrence they are the first of each
 * stretch. */
#include "train/eval.h"

#include "base/arrays.h"
#include "base/clock.h"
#include "base/estimate.h"
#include "base/misuse.h"
#include "base/options.h"
#include "data/source.h"
#include "dist/dist.h"

/* The numbers that a batch adds to the sums. */
enum { EVAL_LOSS, EVAL_COUNTED, EVAL_HITS, EVAL_SPAN, EVAL_TOKENS, EVAL_FIGURES, EVAL_PROCESSES = 64 };
enum { EVAL_ROW_SUMS = sizeof(wn_row_sums) / sizeof(double) };

static wn_status eval_batch(const struct wn_eval_loop *loop, uint64_t i, double *figures) {
  bool packed = false;
  WN_TRY(loop->batch(loop->batch_user, i, loop->tokens, loop->targets, loop->doc_start, &packed));
  if (loop->S > 0) WN_TRY(loop->input_batch(loop->batch_user, i, loop->inputs, loop->input_count));
  const struct wn_batch batch = {.B = loop->B,
                                 .T = loop->T,
                                 .tokens = loop->tokens,
                                 .targets = loop->targets,
                                 .doc_start = packed ? loop->doc_start : NULL,
                                 .S = loop->S,
                                 .inputs = loop->inputs,
                                 .input_count = loop->input_count};
  const struct wn_step step = {.loss_scale = 1,
                               .recurrence_set = loop->recurrence_set,
                               .observer = loop->observer,
                               .budgets = loop->budgets,
                               .rows = loop->rows ? loop->rows + i * (uint64_t)loop->B : NULL};
  struct wn_step_result result = {0};
  WN_TRY(wn_model_step(loop->model, loop->ws, &batch, &step, &result));
  figures[EVAL_LOSS] = result.loss_sum;
  figures[EVAL_COUNTED] = (double)result.counted;
  figures[EVAL_HITS] = (double)result.hits;
  figures[EVAL_TOKENS] = (double)wn_batch_all_tokens(&batch);
  figures[EVAL_SPAN] = result.span * figures[EVAL_TOKENS];
  return WN_OK;
}

/* Several processes take the batches in turn, and all add up the results in the order of the batches, so that sums have
 * the same bits. With recurrence, where a batch continues the last one, and with an observer, which wants to see all,
 * every process computes all batches. */
wn_status wn_eval_loop_run(wn_context *ctx, const struct wn_eval_loop *loop, struct wn_eval_sums *sums) {
  const bool apart = !loop->observer && !loop->continues && wn_dist_size(ctx) <= EVAL_PROCESSES;
  const uint64_t size = apart ? (uint64_t)wn_dist_size(ctx) : 1, rank = apart ? (uint64_t)wn_dist_rank(ctx) : 0;
  double figures[EVAL_PROCESSES][EVAL_FIGURES];
  *sums = (struct wn_eval_sums){0};
  wn_workspace_forget(loop->ws, loop->recurrence_set);
  for (uint64_t i = 0; i < loop->batches; i += size) {
    const uint64_t now = loop->batches - i < size ? loop->batches - i : size;
    double cancelled = wn_dist_rank(ctx) == 0 && wn_context_cancelled(ctx);
    WN_TRY(wn_dist_merge(ctx, &cancelled, 1));
    if (cancelled > 0)
      return wn_fail(ctx, WN_ERR_CANCELLED, "evaluation stopped after %llu of %llu batches", (unsigned long long)i,
                     (unsigned long long)loop->batches);
    memset(figures, 0, sizeof figures);
    if (rank < now) WN_TRY(eval_batch(loop, i + rank, figures[rank]));
    if (size > 1) WN_TRY(wn_dist_merge(ctx, figures[0], now * EVAL_FIGURES));
    if (size > 1 && loop->rows)
      WN_TRY(wn_dist_merge(ctx, &loop->rows[i * (uint64_t)loop->B].loss, now * (uint64_t)loop->B * EVAL_ROW_SUMS));
    for (uint64_t k = 0; k < now; k++) {
      sums->loss += figures[k][EVAL_LOSS];
      sums->counted += (uint64_t)figures[k][EVAL_COUNTED];
      sums->hits += (uint64_t)figures[k][EVAL_HITS];
      sums->span += figures[k][EVAL_SPAN];
      sums->tokens += (uint64_t)figures[k][EVAL_TOKENS];
      sums->batches++;
    }
    if (loop->progress) loop->progress(loop->progress_user, i + now, loop->batches);
  }
  return WN_OK;
}

/* One evaluation. */
struct eval_job {
  const wn_eval_options *options; /* or NULL */
  int64_t B, T, S, recurrence;    /* S: length of the encoder's rows; 0: no encoder */
  uint64_t batches;
  const char *unit; /* what a row is */
  wn_eval_batch_fn batch;
  void *user; /* for `batch` */
  const struct wn_layer_observer *observer;
};

/* A job's workspace and token buffers. */
struct eval_buffers {
  wn_workspace *ws;
  struct wn_arrays arrays;
  int32_t *tokens, *targets, *doc_start, *inputs, *input_count;
};

static wn_status eval_buffers_init(wn_context *ctx, const struct wn_model *model, const struct eval_job *job,
                                   struct eval_buffers *b) {
  const int64_t B = job->B, T = job->T, S = job->S;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(b->tokens, "tokens", true, WN_DIMS(B, T)),
      WN_ARRAY_FOR(b->targets, "targets", true, WN_DIMS(B, T)),
      WN_ARRAY_FOR(b->doc_start, "document starts", true, WN_DIMS(B, T)),
      WN_ARRAY_FOR(b->inputs, "inputs", true, WN_DIMS(B, S)),
      WN_ARRAY_FOR(b->input_count, "input counts", S > 0, WN_DIMS(B)),
  };
  memset(b, 0, sizeof *b);
  WN_ARRAYS_LAY(&b->arrays, rows);
  WN_TRY(wn_arrays_check(ctx, &b->arrays, "evaluation batch of %lld rows of %lld tokens", (long long)B, (long long)T));
  WN_TRY(WN_ARRAYS_CREATE(ctx, &b->arrays, "evaluation batch", rows));
  const struct wn_workspace_options options = {.activation_dtype = WN_F32,
                                               .recurrence = job->recurrence,
                                               .recurrence_whole = job->options && job->options->whole_recurrence,
                                               .recurrence_sets = 1,
                                               .budgets = job->options ? job->options->budgets : NULL,
                                               .observer = job->observer};
  return wn_workspace_create(ctx, model, B, T, &options, &b->ws);
}

static void eval_buffers_clear(struct eval_buffers *b) {
  wn_workspace_destroy(b->ws);
  wn_arrays_clear(&b->arrays);
}

/* The rows that an evaluation reads: all, or `read` of `all` spread evenly. */
struct eval_spread {
  uint64_t read, all; /* read 0: each batch as it comes */
};

static struct eval_spread eval_spread_of(uint64_t batches, int64_t B, uint64_t all) {
  const double read = (double)batches * (double)B;
  return read < (double)all ? (struct eval_spread){batches * (uint64_t)B, all} : (struct eval_spread){0};
}

struct source_user {
  wn_context *ctx;
  const wn_data_source *source;
  uint64_t seed;
  int64_t B, T, S;
  struct eval_spread spread;
};

static wn_status source_batch(void *user, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc_start,
                              bool *packed) {
  struct source_user *u = user;
  *packed = wn_data_source_packs(u->source);
  if (!u->spread.read) return wn_data_source_batch(u->ctx, u->source, u->seed, index, u->B, tokens, targets, doc_start);
  for (int64_t r = 0; r < u->B; r++) {
    const uint64_t row = wn_spread_row(index * (uint64_t)u->B + (uint64_t)r, u->spread.read, u->spread.all);
    WN_TRY(wn_data_source_batch(u->ctx, u->source, u->seed, row, 1, tokens + r * u->T, targets + r * u->T,
                                doc_start + r * u->T));
  }
  return WN_OK;
}

/* Fills the encoder's rows, if the source has any. */
static wn_status source_inputs(void *user, uint64_t index, int32_t *inputs, int32_t *input_count) {
  struct source_user *u = user;
  if (!u->spread.read) return wn_data_source_inputs(u->ctx, u->source, u->seed, index, u->B, inputs, input_count);
  for (int64_t r = 0; r < u->B; r++) {
    const uint64_t row = wn_spread_row(index * (uint64_t)u->B + (uint64_t)r, u->spread.read, u->spread.all);
    WN_TRY(wn_data_source_inputs(u->ctx, u->source, u->seed, row, 1, inputs + r * u->S, input_count + r));
  }
  return WN_OK;
}

void wn_eval_rows_clear(wn_eval_rows *rows) {
  WN_CHECK_OR(, WN_POINTER(rows));
  wn_free(rows->sums);
  *rows = (wn_eval_rows){0};
}

static wn_status eval_rows_init(wn_context *ctx, const struct eval_job *job, wn_eval_rows *rows) {
  const uint64_t most = SIZE_MAX / sizeof *rows->sums / 2;
  *rows = (wn_eval_rows){.unit = job->unit};
  if (job->batches > most / (uint64_t)job->B)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "evaluation of %llu batches: its rows do not fit in memory",
                   (unsigned long long)job->batches);
  rows->count = (int64_t)(job->batches * (uint64_t)job->B);
  return WN_ALLOC(ctx, "rows", rows->count, &rows->sums);
}

/* Drops the rows that fill up the last batch. */
static void eval_rows_trim(wn_eval_rows *rows) {
  int64_t kept = 0;
  for (int64_t i = 0; i < rows->count; i++)
    if (rows->sums[i].tokens > 0) rows->sums[kept++] = rows->sums[i];
  rows->count = kept;
}

/* The loop over the job's batches, with its own buffers. */
static wn_status eval_job_run(wn_context *ctx, wn_model *model, const struct eval_job *job, struct wn_eval_sums *sums,
                              wn_eval_rows *rows) {
  struct eval_buffers b;
  const wn_eval_options *options = job->options;
  const wn_budgets *budgets = options ? options->budgets : NULL;
  if (budgets) WN_TRY(wn_budgets_check(ctx, budgets, &model->config));
  WN_TRY(wn_dist_alike(ctx));
  wn_status status = eval_buffers_init(ctx, model, job, &b);
  if (status == WN_OK) status = eval_rows_init(ctx, job, rows);
  if (status == WN_OK) {
    const struct wn_eval_loop loop = {.model = model,
                                      .ws = b.ws,
                                      .B = job->B,
                                      .T = job->T,
                                      .tokens = b.tokens,
                                      .targets = b.targets,
                                      .doc_start = b.doc_start,
                                      .S = job->S,
                                      .inputs = b.inputs,
                                      .input_count = b.input_count,
                                      .input_batch = source_inputs,
                                      .continues = job->recurrence > 0,
                                      .batches = job->batches,
                                      .batch = job->batch,
                                      .batch_user = job->user,
                                      .progress = options ? options->progress : NULL,
                                      .progress_user = options ? options->user : NULL,
                                      .observer = job->observer,
                                      .budgets = budgets,
                                      .rows = rows->sums};
    status = wn_eval_loop_run(ctx, &loop, sums);
    sums->workspace_bytes = wn_workspace_bytes(b.ws);
    sums->recurrence_bytes = wn_workspace_recurrence_bytes(b.ws);
    eval_rows_trim(rows);
  }
  eval_buffers_clear(&b);
  return status;
}

static wn_status eval_shape(wn_context *ctx, const struct wn_model *model, const wn_eval_options *options, int64_t *B,
                            int64_t *T) {
  *B = options && options->batch ? options->batch : 8;
  *T = options && options->context ? options->context : model->config.context;
  if (*B < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "evaluation batch must be at least 1, found %lld", (long long)*B);
  if (*T < 1 || *T > model->config.context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "evaluation context %lld is outside 1..%lld, the model's context",
                   (long long)*T, (long long)model->config.context);
  return WN_OK;
}

static int64_t eval_recurrence(const struct wn_model *model, const wn_eval_options *options) {
  if (!options || options->recurrence == 0) return model->config.recurrence;
  return options->recurrence > 0 ? options->recurrence : 0;
}

/* bytes: of the text at all counted positions; 0: unknown. */
static wn_status eval_sum_up(wn_context *ctx, const struct wn_eval_sums *sums, const wn_eval_rows *rows, uint64_t bytes,
                             double seconds, wn_eval_result *result) {
  if (sums->counted == 0) return wn_fail(ctx, WN_ERR_FORMAT, "nothing to evaluate: no position has a target");
  double loss = sums->loss / (double)sums->counted;
  if (!isfinite(loss))
    return wn_fail(ctx, WN_ERR_DIVERGED,
                   "the loss is %s: the model's weights are not finite, or so large that its sums overflow",
                   isnan(loss) ? "not a number" : "infinite");
  *result = (wn_eval_result){.loss = loss,
                             .perplexity = exp(loss),
                             .accuracy = (double)sums->hits / (double)sums->counted,
                             .bits_per_byte = bytes ? sums->loss / (log(2.0) * (double)bytes) : 0,
                             .tokens = sums->counted,
                             .bytes = bytes,
                             .batches = sums->batches,
                             .workspace_bytes = sums->workspace_bytes,
                             .recurrence_bytes = sums->recurrence_bytes,
                             .span = sums->span / (double)sums->tokens,
                             .seconds = seconds,
                             .tokens_per_second = seconds > 0 ? (double)sums->counted / seconds : 0,
                             .unit = rows->unit};
  wn_rows_loss(rows->sums, rows->count, &result->loss_rows);
  wn_rows_accuracy(rows->sums, rows->count, &result->accuracy_rows);
  result->loss_rows.value = loss; /* the same sum in another order */
  result->accuracy_rows.value = result->accuracy;
  return WN_OK;
}

/* Runs a job; bytes: of the text of the whole source or text, of which all batches are `all`. */
static wn_status eval_job(wn_context *ctx, wn_model *model, const struct eval_job *job, uint64_t all, uint64_t bytes,
                          double start, wn_eval_result *result) {
  struct wn_eval_sums sums;
  wn_eval_rows rows = {0};
  wn_status status = eval_job_run(ctx, model, job, &sums, &rows);
  if (status == WN_OK)
    status = eval_sum_up(ctx, &sums, &rows, job->batches == all ? bytes : 0, wn_seconds_now() - start, result);
  if (status == WN_OK && job->options && job->options->rows)
    *job->options->rows = rows;
  else
    wn_eval_rows_clear(&rows);
  return status;
}

wn_status wn_eval_observed(wn_context *ctx, wn_model *model, const wn_data_source *source,
                           const wn_eval_options *options, const struct wn_layer_observer *observer,
                           wn_eval_result *result) {
  const wn_model_config *c = &model->config;
  memset(result, 0, sizeof *result);
  int64_t B, T;
  WN_TRY(eval_shape(ctx, model, options, &B, &T));
  WN_TRY(wn_data_source_check(ctx, "evaluation", source, T, c->encoder.layers > 0 ? c->encoder.context : 0));
  uint64_t all = wn_data_source_batches(source, B), batches = all ? all : 16;
  if (options && options->max_batches && (all == 0 || options->max_batches < all)) batches = options->max_batches;
  const int64_t recurrence = eval_recurrence(model, options);
  if (recurrence > 0 && !wn_data_source_streams(source))
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "evaluation with a recurrence of %lld tokens needs a source of streams (data.stream)",
                   (long long)recurrence);
  double start = wn_seconds_now();
  struct source_user user = {.ctx = ctx,
                             .source = source,
                             .seed = options ? options->seed : 0,
                             .B = B,
                             .T = T,
                             .S = wn_data_source_input_length(source)};
  if (all && !wn_data_source_streams(source))
    user.spread = eval_spread_of(batches, B, wn_data_source_batches(source, 1));
  const struct eval_job job = {.options = options,
                               .B = B,
                               .T = T,
                               .S = user.S,
                               .recurrence = recurrence,
                               .batches = batches,
                               .unit = wn_data_source_unit(source),
                               .batch = source_batch,
                               .user = &user,
                               .observer = observer};
  return eval_job(ctx, model, &job, all, options ? options->bytes : 0, start, result);
}

struct text_user {
  const int32_t *ids;
  size_t count;
  int64_t B, T;
  size_t stretch; /* with recurrence: blocks per row; else 0 */
  struct eval_spread spread;
};

/* Row r of batch i is row i*B + r of the spread, or with stretches block i of stretch r. Inputs are ids[block*T ...],
 * targets are one token further. */
static wn_status text_batch(void *user, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc_start,
                            bool *packed) {
  const struct text_user *u = user;
  (void)doc_start;
  *packed = false;
  for (int64_t r = 0; r < u->B; r++) {
    size_t block = u->stretch ? (size_t)r * u->stretch + (size_t)index : (size_t)index * (size_t)u->B + (size_t)r;
    if (u->spread.read) block = (size_t)wn_spread_row(block, u->spread.read, u->spread.all);
    for (int64_t t = 0; t < u->T; t++) {
      size_t at = block * (size_t)u->T + (size_t)t;
      bool counts = at + 1 < u->count;
      tokens[r * u->T + t] = counts ? u->ids[at] : 0;
      targets[r * u->T + t] = counts ? u->ids[at + 1] : -1;
    }
  }
  return WN_OK;
}

/* Evaluates ids [count], at least two; the tokens after the first stand for `bytes` bytes (0: unknown). */
static wn_status eval_ids(wn_context *ctx, wn_model *model, const int32_t *ids, size_t count, size_t bytes,
                          const wn_eval_options *options, const struct wn_layer_observer *observer,
                          wn_eval_result *result) {
  int64_t B, T;
  WN_TRY(eval_shape(ctx, model, options, &B, &T));
  double start = wn_seconds_now();
  size_t blocks = (count - 1 + (size_t)T - 1) / (size_t)T;
  if (blocks < (size_t)B) B = (int64_t)blocks;
  if (blocks == 1) T = (int64_t)(count - 1);
  uint64_t all = (blocks + (size_t)B - 1) / (size_t)B;
  const int64_t recurrence = eval_recurrence(model, options);
  uint64_t batches = options && options->max_batches && options->max_batches < all ? options->max_batches : all;
  struct text_user user = {.ids = ids, .count = count, .B = B, .T = T, .stretch = recurrence > 0 ? (size_t)all : 0};
  if (recurrence <= 0) user.spread = eval_spread_of(batches, B, blocks);
  const struct eval_job job = {.options = options,
                               .B = B,
                               .T = T,
                               .recurrence = recurrence,
                               .batches = batches,
                               .unit = "block",
                               .batch = text_batch,
                               .user = &user,
                               .observer = observer};
  return eval_job(ctx, model, &job, all, bytes, start, result);
}

wn_status wn_eval_text_observed(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const char *text,
                                size_t bytes, const wn_eval_options *options, const struct wn_layer_observer *observer,
                                wn_eval_result *result) {
  memset(result, 0, sizeof *result);
  if (wn_tokenizer_vocab_size(tok) > model->config.vocab_size) /* a model's vocabulary may be padded */
    return wn_fail(ctx, WN_ERR_SHAPE, "the tokenizer has a vocabulary of %d, the model of %lld",
                   (int)wn_tokenizer_vocab_size(tok), (long long)model->config.vocab_size);
  int32_t *ids = NULL;
  size_t count = 0;
  bool bos = wn_tokenizer_bos(tok) >= 0;
  WN_TRY(wn_tokenizer_encode(ctx, tok, text, bytes, bos, false, &ids, &count));
  if (count < 2) {
    wn_tokens_free(ids);
    return wn_fail(ctx, WN_ERR_FORMAT, "the text has %zu token%s: nothing to predict", count, count == 1 ? "" : "s");
  }
  /* The first token is not predicted if none stands before it; its bytes do not count either. */
  size_t unpredicted = 0;
  wn_status status = WN_OK;
  if (!bos) {
    char *first = NULL;
    status = wn_tokenizer_decode(ctx, tok, ids, 1, &first, &unpredicted);
    wn_text_free(first);
  }
  if (status == WN_OK)
    status = eval_ids(ctx, model, ids, count, bytes > unpredicted ? bytes - unpredicted : 0, options, observer, result);
  wn_tokens_free(ids);
  return status;
}

wn_status wn_eval(wn_context *ctx, wn_model *model, const wn_data_source *source, const wn_eval_options *options,
                  wn_eval_result *result) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(result));
  wn_eval_options own = {0};
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_eval_options, options, &own));
  WN_CHECK_WORK(WN_HANDLE(source, DATA_SOURCE));
  return wn_eval_observed(ctx, model, source, &own, NULL, result);
}

wn_status wn_eval_text(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const char *text, size_t bytes,
                       const wn_eval_options *options, wn_eval_result *result) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_HANDLE(tok, TOKENIZER), WN_ARRAY(text, bytes), WN_POINTER(result));
  wn_eval_options own = {0};
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_eval_options, options, &own));
  return wn_eval_text_observed(ctx, model, tok, text, bytes, &own, NULL, result);
}

wn_status wn_eval_tokens(wn_context *ctx, wn_model *model, const int32_t *tokens, int64_t count,
                         const wn_eval_options *options, wn_eval_result *result) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_ARRAY(tokens, count), WN_POINTER(result));
  wn_eval_options own = {0};
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_eval_options, options, &own));
  memset(result, 0, sizeof *result);
  if (count < 2)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "wn_eval_tokens: %lld tokens: nothing to predict", (long long)count);
  return eval_ids(ctx, model, tokens, (size_t)count, own.bytes, &own, NULL, result);
}
