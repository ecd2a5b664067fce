/* Data sources. Sequence r of step s is number g = s B + r of an endless list of sequences. So a batch is a pure
 * function of (source, seed, step), and a batch computed in two halves has the same sequences as the whole.
 *
 * Token files, training: a block is T + 1 tokens; its last token is the first of the next block. Epoch e = g / blocks
 * visits the blocks in a seeded order of its own (a permutation by a Feistel network: no list in memory). Each epoch's
 * blocks are shifted by a random offset, at most the number of tokens left over after the last block, so that no token
 * is left out for ever. Validation: blocks in file order, the last one padded, so that one pass counts every token but
 * the first exactly once.
 *
 * Span corruption: a block is as many tokens as give the encoder's length; blocks follow each other without overlap, in
 * the same orders. Validation drops the same spans for every seed.
 *
 * Streams (segment recurrence): the file's blocks are cut into B stretches of n = blocks / B. Sequence r of step s is
 * block r n + s mod n, so that a sequence continues where the one before it stopped. Validation takes n = ceil(blocks /
 * B), so that every token is counted once.
 *
 * Sequences of documents: sequence g is the g-th document in the same orders. Tokens beyond T + 1 are left out; a
 * shorter document is padded at its end. The padding attends to the document, but nothing that counts attends to the
 * padding. */
#include "base/alloc.h"
#include "base/misuse.h"
#include "base/options.h"
#include "base/rng.h"
#include "data/config.h"
#include "data/documents.h"
#include "data/source.h"
#include "data/span_corruption.h"
#include "data/tasks.h"
#include "data/token_file.h"

#include <inttypes.h>
#include <string.h>

struct wn_data_source {
  wn_data_config config;
  bool val;
  int64_t T;
  int32_t vocab_size;
  wn_token_file *file;                 /* tokens */
  uint64_t blocks;                     /* blocks or documents in one pass */
  struct wn_document_places documents; /* sequences of documents: count is `blocks`; else count is 0 */
  uint64_t slack;                      /* training: tokens left over after the last block */
  int32_t *block;                      /* [T+1], or [text] */
  int64_t text;                        /* span corruption: tokens in a block; 0: not span corruption */
  struct wn_span_corruption corruption;
  int32_t *pair; /* [input_length + 1] and [T]: inputs and targets of one sequence */
};

static wn_status check_task(wn_context *ctx, const wn_data_config *c, int64_t T, int32_t vocab_size) {
  const char *name = c->kind == WN_DATA_VARIABLE_ASSIGNMENT ? "variable_assignment"
                     : c->kind == WN_DATA_COPY              ? "copy"
                                                            : "parity";
  struct {
    const char *key;
    int value;
    bool used;
  } counts[] = {{"variables", c->variables, c->kind == WN_DATA_VARIABLE_ASSIGNMENT},
                {"values", c->values, c->kind != WN_DATA_PARITY},
                {"assignments", c->assignments, c->kind == WN_DATA_VARIABLE_ASSIGNMENT},
                {"max_length", c->max_length, c->kind != WN_DATA_VARIABLE_ASSIGNMENT}};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
    if (counts[i].used && (counts[i].value < 1 || counts[i].value > 1 << 28))
      return wn_fail(ctx, WN_ERR_CONFIG, "data.%s: %d is out of range 1..%d", counts[i].key, counts[i].value, 1 << 28);
  if (c->kind == WN_DATA_PARITY && c->max_length < 2)
    return wn_fail(ctx, WN_ERR_CONFIG, "data.max_length: a parity sequence has at least 2 positions, found %d",
                   c->max_length);
  if (c->kind == WN_DATA_VARIABLE_ASSIGNMENT && (c->eval_values < 0 || c->eval_values > c->values))
    return wn_fail(ctx, WN_ERR_CONFIG, "data.eval_values: %d is out of range 0..%d (data.values)", c->eval_values,
                   c->values);
  int64_t vocab, context;
  wn_data_config_requirements(c, &vocab, &context);
  if (vocab > vocab_size)
    return wn_fail(ctx, WN_ERR_SHAPE, "the task %s has %" PRId64 " tokens, the model's vocabulary has %d", name, vocab,
                   vocab_size);
  if (context > T)
    return wn_fail(ctx, WN_ERR_SHAPE, "a sequence of the task %s takes %" PRId64 " tokens, the context has %" PRId64,
                   name, context, T);
  return WN_OK;
}

/* The token that starts a document: the configured one, else that of data.json. */
static wn_status find_document_token(wn_context *ctx, wn_data_source *s, const char *path, const char *for_what) {
  WN_TRY(wn_documents_token(ctx, path, s->config.document_token, s->vocab_size, &s->config.document_token));
  if (s->config.document_token >= 0) return WN_OK;
  return wn_fail(ctx, WN_ERR_CONFIG,
                 "%s: %s need data.document_token, the token that starts a document; data.json in its folder names "
                 "none either",
                 path, for_what);
}

/* Sequences of documents: finds the documents. */
static wn_status open_documents(wn_context *ctx, wn_data_source *s, const char *path) {
  const bool long_only = s->config.long_only;
  WN_TRY(find_document_token(ctx, s, path, "rows of documents"));
  const int32_t token = s->config.document_token;
  WN_TRY(wn_documents_find(ctx, s->file, token, long_only ? wn_documents_long(s->T) : 2, &s->documents));
  s->blocks = s->documents.count;
  if (s->blocks > 0) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT,
                 long_only ? "%s: no document (from token %d on) fills 90%% of the context of %" PRId64 " tokens"
                           : "%s: no document (from token %d on) has 2 tokens; the context has %" PRId64,
                 path, token, s->T);
}

/* Blocks of the context's length: counts them. */
static wn_status open_blocks(wn_context *ctx, wn_data_source *s, const char *path) {
  const uint64_t count = wn_token_file_count(s->file), T = (uint64_t)s->T;
  if (s->val) {
    if (count < 2)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: %" PRIu64 " tokens; an evaluation needs at least 2", path, count);
    s->blocks = (count - 1 + T - 1) / T;
  } else {
    if (count <= T)
      return wn_fail(ctx, WN_ERR_FORMAT,
                     "%s: %" PRIu64 " tokens are shorter than a block; a context of %" PRIu64
                     " needs at least %" PRIu64,
                     path, count, T, T + 1);
    s->blocks = (count - 1) / T;
    s->slack = (count - 1) % T;
  }
  return WN_OK;
}

static wn_status open_tokens(wn_context *ctx, wn_data_source *s) {
  const char *path = s->val ? s->config.val : s->config.train;
  if (!*path) return wn_fail(ctx, WN_ERR_CONFIG, "data.%s: no token file is named", s->val ? "val" : "train");
  if (s->config.pack && s->config.stream)
    return wn_fail(ctx, WN_ERR_CONFIG, "data.stream and data.pack exclude each other");
  if (s->config.pack) WN_TRY(find_document_token(ctx, s, path, "packed documents"));
  if (s->config.rows == WN_ROWS_DOCUMENT || s->config.long_only) WN_TRY(wn_data_config_check(ctx, "data", &s->config));
  WN_TRY(wn_token_file_open(ctx, path, &s->file));
  WN_TRY(s->config.rows == WN_ROWS_DOCUMENT ? open_documents(ctx, s, path) : open_blocks(ctx, s, path));
  return WN_ALLOC(ctx, "block of tokens", s->T + 1, &s->block);
}

static wn_status open_spans(wn_context *ctx, wn_data_source *s) {
  const wn_data_config *c = &s->config;
  const char *path = s->val ? c->val : c->train;
  int64_t target;
  if (!*path) return wn_fail(ctx, WN_ERR_CONFIG, "data.%s: no token file is named", s->val ? "val" : "train");
  if (c->input_length < 3)
    return wn_fail(ctx, WN_ERR_CONFIG, "data.input_length is %" PRId64 "; span corruption needs the encoder's length",
                   c->input_length);
  WN_TRY(wn_data_config_check(ctx, "data", c));
  wn_span_corruption_lengths(c->input_length, c->noise_density, c->mean_span, &s->text, &target);
  if (target > s->T)
    return wn_fail(ctx, WN_ERR_SHAPE,
                   "%" PRId64 " tokens of input have targets of %" PRId64 ", the context has %" PRId64, c->input_length,
                   target, s->T);
  const int32_t plain = s->vocab_size - c->sentinels;
  if (plain < 1 || c->start_token >= s->vocab_size || c->end_token >= s->vocab_size)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "data: %d sentinels, start_token %d and end_token %d do not fit in the model's vocabulary of %d",
                   c->sentinels, c->start_token, c->end_token, s->vocab_size);
  s->corruption = (struct wn_span_corruption){
      .density = c->noise_density, .mean_span = c->mean_span, .vocab_size = s->vocab_size, .end = c->end_token};
  WN_TRY(wn_token_file_open(ctx, path, &s->file));
  const uint64_t count = wn_token_file_count(s->file), n = (uint64_t)s->text;
  if (count < (s->val ? 2 : n))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %" PRIu64 " tokens are fewer than a block of %" PRIu64, path, count,
                   s->val ? 2 : n);
  s->blocks = s->val ? (count + n - 1) / n : count / n;
  s->slack = s->val ? 0 : count % n;
  WN_TRY(WN_ALLOC(ctx, "block of tokens", s->text, &s->block));
  return WN_ALLOC(ctx, "inputs and targets", c->input_length + 1 + s->T, &s->pair);
}

wn_status wn_data_source_create(wn_context *ctx, const wn_data_config *config, const char *split, int64_t context,
                                int32_t vocab_size, wn_data_source **out) {
  WN_CHECK_CALL(WN_POINTER(config), WN_POINTER(out));
  *out = NULL;
  WN_TRY(WN_RESERVED_CHECK(ctx, wn_data_config, config));
  bool val = split && !strcmp(split, "val");
  if (!val && (!split || strcmp(split, "train")))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "data split \"%s\" is not one of train, val", split ? split : "");
  if (context < 1 || context > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a context of %" PRId64 " tokens is out of range 1..%d", context, INT32_MAX);
  if (vocab_size < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "a vocabulary of %d tokens is out of range", vocab_size);
  wn_data_source *s;
  WN_TRY(WN_ALLOC(ctx, "data source", 1, &s));
  wn_handle_mark(s, WN_HANDLE_DATA_SOURCE);
  s->config = *config;
  s->val = val;
  s->T = context;
  s->vocab_size = vocab_size;
  wn_status status = config->kind == WN_DATA_TOKENS            ? open_tokens(ctx, s)
                     : config->kind == WN_DATA_SPAN_CORRUPTION ? open_spans(ctx, s)
                                                               : check_task(ctx, config, context, vocab_size);
  if (status != WN_OK) {
    wn_data_source_destroy(s);
    return status;
  }
  *out = s;
  return WN_OK;
}

void wn_data_source_destroy(wn_data_source *source) {
  WN_CHECK_OR(, WN_HANDLE(source, DATA_SOURCE));
  wn_token_file_close(source->file);
  wn_documents_clear(&source->documents);
  wn_free(source->block);
  wn_free(source->pair);
  wn_free(source);
}

wn_status wn_data_source_check(wn_context *ctx, const char *what, const wn_data_source *source, int64_t T, int64_t S) {
  const int64_t inputs = wn_data_source_input_length(source);
  if (source->T != T)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "%s: the source has rows of %" PRId64 " tokens, the context is %" PRId64
                   "; create the source with that context",
                   what, source->T, T);
  if (S == 0 && inputs > 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: the source has inputs for an encoder, the model has no encoder", what);
  if (S > 0 && inputs == 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: the model has an encoder, the source has no inputs for it", what);
  if (inputs > S)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "%s: the source has inputs of %" PRId64 " tokens, the model's encoder takes at most %" PRId64, what,
                   inputs, S);
  return WN_OK;
}

uint64_t wn_data_source_batches(const wn_data_source *source, int64_t B) {
  WN_CHECK_OR(0, WN_HANDLE(source, DATA_SOURCE));
  if (!source->file || B < 1) return 0;
  return (source->blocks - 1) / (uint64_t)B + 1;
}

const char *wn_data_source_unit(const wn_data_source *s) {
  return s->config.kind != WN_DATA_TOKENS && s->config.kind != WN_DATA_SPAN_CORRUPTION ? "case"
         : s->config.rows == WN_ROWS_DOCUMENT                                          ? "document"
                                                                                       : "block";
}

bool wn_data_source_streams(const wn_data_source *source) {
  WN_CHECK_OR(false, WN_HANDLE(source, DATA_SOURCE));
  return source->config.kind == WN_DATA_TOKENS && source->config.stream;
}

/* Blocks in a stretch, for batches of B sequences; 0: there are too few. */
static uint64_t stretch(const wn_data_source *s, int64_t B) {
  return s->val ? wn_data_source_batches(s, B) : s->blocks / (uint64_t)B;
}

bool wn_data_source_continues(const wn_data_source *source, uint64_t step, int64_t B) {
  WN_CHECK_OR(false, WN_HANDLE(source, DATA_SOURCE));
  if (!wn_data_source_streams(source) || B < 1 || stretch(source, B) == 0) return false;
  return step % stretch(source, B) != 0;
}

/* Position of the first token of training block g. */
static uint64_t shuffled(const wn_data_source *s, uint64_t seed, uint64_t g, uint64_t length) {
  const uint64_t epoch = g / s->blocks;
  const uint64_t offset = wn_random_below(seed, WN_STREAM_DATA, epoch, UINT64_MAX, s->slack + 1);
  return offset + length * wn_random_permute(seed, WN_STREAM_DATA, epoch, s->blocks, g % s->blocks);
}

static wn_status read_block(wn_context *ctx, const wn_data_source *s, uint64_t first, uint64_t n, int32_t limit) {
  WN_TRY(wn_token_file_read(ctx, s->file, first, n, s->block));
  for (uint64_t i = 0; i < n; i++)
    if (s->block[i] >= limit)
      return wn_fail(ctx, WN_ERR_SHAPE, "%s: token %" PRIu64 " is %d, outside the model's vocabulary of %d%s",
                     wn_token_file_path(s->file), first + i, s->block[i], limit,
                     limit < s->vocab_size ? " before the sentinels" : "");
  return WN_OK;
}

/* Sequence g of span corruption: inputs and targets, in s->pair. Counts of 0: g is beyond the pass. */
static wn_status source_span_row(wn_context *ctx, const wn_data_source *s, uint64_t seed, uint64_t g,
                                 struct wn_span_row *out) {
  const uint64_t n = (uint64_t)s->text, count = wn_token_file_count(s->file);
  const uint64_t first = s->val ? g * n : shuffled(s, seed, g, n);
  *out = (struct wn_span_row){.inputs = s->pair, .targets = s->pair + s->config.input_length + 1};
  if (s->val && (g >= s->blocks || count - first < 2)) return WN_OK;
  const uint64_t now = n < count - first ? n : count - first;
  WN_TRY(read_block(ctx, s, first, now, s->vocab_size - s->config.sentinels));
  wn_span_corrupt(&s->corruption, s->val ? 0 : seed, g, s->block, (int64_t)now, out);
  return WN_OK;
}

/* The decoder's sequence: its input is its targets, shifted by one position. */
static wn_status span_target_row(wn_context *ctx, const wn_data_source *s, uint64_t seed, uint64_t g, int32_t *tokens,
                                 int32_t *targets) {
  struct wn_span_row row;
  WN_TRY(source_span_row(ctx, s, seed, g, &row));
  for (int64_t i = 0; i < s->T; i++) {
    tokens[i] = i > 0 && i < row.target_count ? row.targets[i - 1] : s->config.start_token;
    targets[i] = i < row.target_count ? row.targets[i] : -1;
  }
  return WN_OK;
}

/* Sequence g of a token file: its position, and its length of at most T + 1 tokens; 0: g is beyond the pass. */
static void source_token_span(const wn_data_source *s, uint64_t seed, uint64_t g, uint64_t *first, uint64_t *n) {
  const uint64_t T = (uint64_t)s->T, blocks = s->blocks;
  *first = 0, *n = 0;
  if (s->val && g >= blocks) return; /* the last batch of a pass may have sequences without data */
  if (s->documents.count > 0) {
    const uint64_t i = s->val ? g : wn_random_permute(seed, WN_STREAM_DATA, g / blocks, blocks, g % blocks);
    *first = s->documents.first[i], *n = s->documents.held[i];
  } else {
    *first = s->val || s->config.stream ? g * T : shuffled(s, seed, g, T);
    *n = wn_token_file_count(s->file) - *first;
  }
  if (*n > T + 1) *n = T + 1;
}

/* Sequence g of a token file: tokens, targets [T]. */
static wn_status token_row(wn_context *ctx, const wn_data_source *s, uint64_t seed, uint64_t g, int32_t *tokens,
                           int32_t *targets) {
  uint64_t first, n;
  source_token_span(s, seed, g, &first, &n);
  WN_TRY(read_block(ctx, s, first, n, s->vocab_size));
  for (uint64_t i = 0; i < (uint64_t)s->T; i++) {
    tokens[i] = i + 1 < n ? s->block[i] : 0;
    targets[i] = i + 1 < n ? s->block[i + 1] : -1;
  }
  return WN_OK;
}

/* doc_start [T]: the last document token at or before each position; 0 before the first. */
static void mark_documents(int32_t document_token, int64_t T, const int32_t *tokens, int32_t *doc_start) {
  int32_t start = 0;
  for (int64_t i = 0; i < T; i++) {
    if (tokens[i] == document_token) start = (int32_t)i;
    doc_start[i] = start;
  }
}

bool wn_data_source_packs(const wn_data_source *source) {
  WN_CHECK_OR(false, WN_HANDLE(source, DATA_SOURCE));
  return source->config.kind == WN_DATA_TOKENS && source->config.pack;
}

wn_status wn_data_source_batch(wn_context *ctx, const wn_data_source *source, uint64_t seed, uint64_t step, int64_t B,
                               int32_t *tokens, int32_t *targets, int32_t *doc_start) {
  WN_CHECK_CALL(WN_HANDLE(source, DATA_SOURCE), WN_POINTER(tokens), WN_POINTER(targets));
  const wn_data_source *s = source;
  if (B < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "a batch of %" PRId64 " rows is out of range", B);
  uint64_t g, each = 0;
  if (s->val && s->file) step %= wn_data_source_batches(s, B);
  if (wn_data_source_streams(s)) {
    each = stretch(s, B);
    if (each == 0)
      return wn_fail(ctx, WN_ERR_FORMAT,
                     "%s: %" PRIu64 " blocks of %" PRId64 " tokens are fewer than %" PRId64 " streams need",
                     wn_token_file_path(s->file), s->blocks, s->T, B);
    step %= each;
  }
  if (__builtin_mul_overflow(step, (uint64_t)B, &g) || g > INT64_MAX - (uint64_t)B)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "step %" PRIu64 " at %" PRId64 " rows is past the end of all sequences", step,
                   B);
  for (int64_t r = 0; r < B; r++, g++, tokens += s->T, targets += s->T) {
    if (s->config.kind == WN_DATA_TOKENS)
      WN_TRY(token_row(ctx, s, seed, each ? (uint64_t)r * each + step : g, tokens, targets));
    else if (s->config.kind == WN_DATA_SPAN_CORRUPTION)
      WN_TRY(span_target_row(ctx, s, seed, g, tokens, targets));
    else
      wn_task_sample(&s->config, s->val, seed, g, s->T, tokens, targets);
    if (doc_start && wn_data_source_packs(s)) {
      mark_documents(s->config.document_token, s->T, tokens, doc_start);
      doc_start += s->T;
    }
  }
  return WN_OK;
}

int64_t wn_data_source_input_length(const wn_data_source *source) {
  WN_CHECK_OR(0, WN_HANDLE(source, DATA_SOURCE));
  return source->config.kind == WN_DATA_SPAN_CORRUPTION ? source->config.input_length : 0;
}

wn_status wn_data_source_inputs(wn_context *ctx, const wn_data_source *s, uint64_t seed, uint64_t step, int64_t B,
                                int32_t *inputs, int32_t *input_count) {
  WN_CHECK_CALL(WN_HANDLE_AS("source", s, DATA_SOURCE), WN_POINTER(inputs), WN_POINTER(input_count));
  const int64_t S = wn_data_source_input_length(s);
  uint64_t g;
  if (S == 0 || B < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "inputs of %" PRId64 " rows of a source that has none", B);
  if (s->val) step %= wn_data_source_batches(s, B);
  if (__builtin_mul_overflow(step, (uint64_t)B, &g) || g > INT64_MAX - (uint64_t)B)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "step %" PRIu64 " at %" PRId64 " rows is past the end of all sequences", step,
                   B);
  for (int64_t r = 0; r < B; r++, g++, inputs += S) {
    struct wn_span_row row;
    WN_TRY(source_span_row(ctx, s, seed, g, &row));
    for (int64_t i = 0; i < S; i++) inputs[i] = i < row.input_count ? row.inputs[i] : s->config.start_token;
    input_count[r] = (int32_t)row.input_count;
  }
  return WN_OK;
}
