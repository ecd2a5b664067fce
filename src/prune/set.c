/* Reads rows from a token file: blocks as long as the context, or one document each. */
#include "prune/set.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/estimate.h"
#include "base/fingerprint.h"
#include "base/rng.h"
#include "data/documents.h"
#include "dist/dist.h"

enum { TURNS = 4 }; /* batches of each process in a round; cancellation is checked between rounds */

struct reader {
  wn_context *ctx;
  const char *what;
  const wn_prune_data *data;
  const wn_token_file *file;
  uint64_t count;
  int64_t T, vocab_size;
  bool shuffled;
};

/* Fills row r: `held` tokens from `first` on, and one more token to predict if there is one. */
static wn_status set_fill_row(const struct reader *in, struct wn_prune_set *set, int64_t r, uint64_t first,
                              uint64_t held) {
  const uint64_t T = (uint64_t)in->T;
  int32_t *tokens = set->tokens + r * in->T, *targets = set->targets + r * in->T;
  const uint64_t inputs = held > T ? T : held - 1; /* so that every input has a target */
  WN_TRY(wn_token_file_read(in->ctx, in->file, first, inputs, tokens));
  WN_TRY(wn_token_file_read(in->ctx, in->file, first + 1, inputs, targets));
  for (uint64_t i = 0; i <= inputs; i++) {
    const int32_t id = i < inputs ? tokens[i] : targets[inputs - 1];
    if (id < 0 || id >= in->vocab_size)
      return wn_fail(in->ctx, WN_ERR_SHAPE, "%s: token %" PRIu64 " is %d, outside the model's vocabulary of %lld",
                     in->data->path, first + i, id, (long long)in->vocab_size);
  }
  for (uint64_t i = inputs; i < T; i++) tokens[i] = 0, targets[i] = -1;
  set->counted += inputs;
  set->row_tokens[r] = (double)inputs;
  return WN_OK;
}

static wn_status set_allocate(const struct reader *in, int64_t rows, struct wn_prune_set *set) {
  const int64_t round = TURNS * (int64_t)wn_dist_size(in->ctx);
  set->rows = set->all_rows = rows;
  set->unit = in->data->long_only ? "document" : "block";
  set->T = in->T;
  const struct wn_array own[] = {
      WN_ARRAY_FOR(set->sums, "sums", true, WN_DIMS(round + 1)),
      WN_ARRAY_FOR(set->row_tokens, "rows", true, WN_DIMS(rows)),
      WN_ARRAY_FOR(set->tokens, "tokens", true, WN_DIMS(rows, in->T)),
      WN_ARRAY_FOR(set->targets, "targets", true, WN_DIMS(rows, in->T)),
  };
  return WN_ARRAYS_CREATE(in->ctx, &set->arrays, in->what, own);
}

/* The item, of `all`, that row r of `rows` takes. */
static uint64_t set_item(const struct reader *in, int64_t r, int64_t rows, uint64_t all) {
  const uint64_t n = (uint64_t)rows, i = (uint64_t)r;
  return wn_spread_row(in->shuffled ? wn_random_permute(0, WN_STREAM_SAMPLE_ROWS, 1, n, i) : i, n, all);
}

static wn_status set_load_blocks(const struct reader *in, struct wn_prune_set *set) {
  const uint64_t T = (uint64_t)in->T;
  if (in->count < 2)
    return wn_fail(in->ctx, WN_ERR_FORMAT, "%s: %" PRIu64 " tokens; the %s needs at least 2", in->data->path, in->count,
                   in->what);
  const uint64_t blocks = (in->count - 1 + T - 1) / T;
  const int64_t rows = in->data->rows > 0 && (uint64_t)in->data->rows < blocks ? in->data->rows : (int64_t)blocks;
  WN_TRY(set_allocate(in, rows, set));
  for (int64_t r = 0; r < rows; r++) {
    const uint64_t first = set_item(in, r, rows, blocks) * T;
    WN_TRY(set_fill_row(in, set, r, first, in->count - first));
  }
  return WN_OK;
}

static wn_status set_load_documents(const struct reader *in, struct wn_prune_set *set) {
  struct wn_document_places documents;
  int32_t token;
  WN_TRY(wn_documents_token(in->ctx, in->data->path, in->data->document_token, in->vocab_size, &token));
  if (token < 0)
    return wn_fail(in->ctx, WN_ERR_ARGUMENT,
                   "%s: long documents need the token that starts one; data.json in its folder names none either",
                   in->data->path);
  WN_TRY(wn_documents_find(in->ctx, in->file, token, wn_documents_long(in->T), &documents));
  const uint64_t all = documents.count;
  wn_status status = WN_OK;
  if (all == 0)
    status =
        wn_fail(in->ctx, WN_ERR_FORMAT, "%s: no document (from token %d on) fills 90%% of the context of %lld tokens",
                in->data->path, token, (long long)in->T);
  const int64_t rows = in->data->rows > 0 && (uint64_t)in->data->rows < all ? in->data->rows : (int64_t)all;
  if (status == WN_OK) status = set_allocate(in, rows, set);
  for (int64_t r = 0; r < rows && status == WN_OK; r++) {
    const uint64_t i = set_item(in, r, rows, all);
    status = set_fill_row(in, set, r, documents.first[i], documents.held[i]);
  }
  wn_documents_clear(&documents);
  return status;
}

wn_status wn_prune_set_load(wn_context *ctx, const char *what, const wn_prune_data *data, int64_t T, int64_t vocab_size,
                            bool shuffled, struct wn_prune_set *out) {
  memset(out, 0, sizeof *out);
  if (!data->path || !*data->path) return wn_fail(ctx, WN_ERR_ARGUMENT, "the %s has no token file", what);
  if (T < 2 || T > INT32_MAX || data->rows < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "the %s: %lld rows of %lld tokens; a row has at least 2", what,
                   (long long)data->rows, (long long)T);
  wn_token_file *file;
  WN_TRY(wn_token_file_open(ctx, data->path, &file));
  const struct reader in = {.ctx = ctx,
                            .what = what,
                            .data = data,
                            .file = file,
                            .count = wn_token_file_count(file),
                            .T = T,
                            .vocab_size = vocab_size,
                            .shuffled = shuffled};
  wn_status status = data->long_only ? set_load_documents(&in, out) : set_load_blocks(&in, out);
  wn_token_file_close(file);
  if (status != WN_OK) {
    wn_prune_set_clear(out);
    return status;
  }
  const size_t n = (size_t)out->rows * (size_t)T * sizeof(int32_t);
  char halves[2][24] = {{0}};
  wn_fingerprint(out->tokens, n, halves[0]);
  wn_fingerprint(out->targets, n, halves[1]);
  wn_fingerprint(halves, sizeof halves, out->fingerprint);
  return WN_OK;
}

wn_status wn_prune_set_leave(wn_context *ctx, const char *what, struct wn_prune_set *set, int64_t read) {
  struct {
    char rows[24];
    int64_t read;
  } of = {{0}, read};
  set->read = read;
  set->counted = 0;
  for (int64_t r = 0; r < set->rows; r++) {
    for (int64_t t = 0; t < read; t++) set->targets[r * set->T + t] = -1;
    set->row_tokens[r] = fmax(set->row_tokens[r] - (double)read, 0);
    set->counted += (uint64_t)set->row_tokens[r];
  }
  if (set->counted == 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "the %s: no row is longer than the %lld tokens of its context", what,
                   (long long)read);
  memcpy(of.rows, set->fingerprint, sizeof of.rows);
  wn_fingerprint(&of, sizeof of, set->fingerprint);
  return WN_OK;
}

void wn_prune_set_clear(struct wn_prune_set *set) {
  wn_arrays_clear(&set->arrays);
  memset(set, 0, sizeof *set);
}

/* Keeps this process's rows. A process without a batch holds the first process's rows: it repeats that work and takes
 * part in everything else. */
void wn_prune_set_share(wn_context *ctx, struct wn_prune_set *set, int64_t batch) {
  const int64_t size = wn_dist_size(ctx), T = set->T, rank = wn_dist_rank(ctx);
  int64_t kept = 0;
  if (size == 1 || batch < 1) return; /* evaluators refuse a batch below 1 */
  set->shared = true;
  set->idle = rank * batch >= set->rows;
  for (int64_t row = rank * batch; row < set->rows; row += size * batch) {
    const int64_t B = set->rows - row < batch ? set->rows - row : batch;
    memmove(set->tokens + kept * T, set->tokens + row * T, (size_t)(B * T) * sizeof *set->tokens);
    memmove(set->targets + kept * T, set->targets + row * T, (size_t)(B * T) * sizeof *set->targets);
    kept += B;
  }
  if (set->idle) kept = set->rows < batch ? set->rows : batch;
  set->rows = kept;
}

wn_status wn_prune_set_gather(wn_context *ctx, const struct wn_prune_set *set, int64_t batch,
                              const struct wn_prune_part *part, const double *own, int64_t stride, double *all) {
  const int64_t size = set->shared ? wn_dist_size(ctx) : 1, rank = set->shared ? wn_dist_rank(ctx) : 0;
  const int64_t from = part ? part->from : 0, until = part ? part->until : set->all_rows;
  memset(all + from, 0, (size_t)(until - from) * sizeof *all);
  for (int64_t r = 0; r < set->rows && !set->idle; r++) {
    const int64_t row = (r / batch * size + rank) * batch + r % batch;
    if (row >= from && row < until) all[row] = own[r * stride];
  }
  return set->shared ? wn_dist_merge(ctx, all + from, (size_t)(until - from)) : WN_OK;
}

/* Runs this process's batches among the `count` batches from `first` on. */
static wn_status set_run_round(wn_context *ctx, const struct wn_prune_set *set, int64_t batch, int64_t first,
                               int64_t count, wn_prune_batch_fn run, void *user) {
  const int64_t size = set->shared ? wn_dist_size(ctx) : 1, rank = set->shared ? wn_dist_rank(ctx) : 0;
  for (int64_t i = (rank + size - first % size) % size; i < count; i += size) {
    const int64_t row0 = (first + i) / size * batch;
    if (wn_dist_rank(ctx) == 0 && wn_context_cancelled(ctx)) {
      set->sums[count] = 1;
      return WN_OK;
    }
    WN_TRY(run(user, row0, set->rows - row0 < batch ? set->rows - row0 : batch, &set->sums[i]));
  }
  double unused;
  return set->idle && first == 0 ? run(user, 0, set->rows, &unused) : WN_OK;
}

wn_status wn_prune_set_run(wn_context *ctx, const struct wn_prune_set *set, int64_t batch,
                           const struct wn_prune_part *part, wn_prune_batch_fn run, void *user, double *sum) {
  const int64_t end = (part->until + batch - 1) / batch, round = TURNS * (int64_t)wn_dist_size(ctx);
  double all = 0;
  for (int64_t first = part->from / batch; first < end; first += round) {
    const int64_t count = end - first < round ? end - first : round;
    memset(set->sums, 0, (size_t)(count + 1) * sizeof *set->sums);
    WN_TRY(set_run_round(ctx, set, batch, first, count, run, user));
    if (set->shared) WN_TRY(wn_dist_merge(ctx, set->sums, (size_t)count + 1));
    if (set->sums[count] > 0) return wn_fail(ctx, WN_ERR_CANCELLED, "stopped in an evaluation");
    for (int64_t i = 0; i < count; i++) all += set->sums[i];
  }
  *sum = all;
  return WN_OK;
}

wn_status wn_prune_set_mean(wn_context *ctx, const struct wn_prune_set *set, int64_t batch, wn_prune_batch_fn run,
                            void *user, double *mean) {
  double sum;
  WN_TRY(wn_prune_set_run(ctx, set, batch, &(struct wn_prune_part){0, set->all_rows}, run, user, &sum));
  *mean = sum / (double)set->counted;
  return WN_OK;
}
