/* Turns text and JSON lines into token files, in one pass and in memory that does not grow with the corpus.
 *
 * A hash of (seed, index) decides whether a document goes to the validation split. A document's tokens are those of its
 * text, with the tokenizer's bos before them (SentencePiece), or a newline after them (bytes). Bits per byte are
 * computed from byte counts that include the text and one byte per document for this separator, since its token is
 * predicted like any other. */
#include "base/alloc.h"
#include "base/fields.h"
#include "base/misuse.h"
#include "base/open.h"
#include "base/options.h"
#include "base/rng.h"
#include "data/lines.h"
#include "data/prepare.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <string.h>

#define VAL_FRACTION 0.05                /* the default */
#define BUFFER_BYTES ((size_t)1 << 20)   /* text of a document that is buffered before it is cut */
#define BUFFER_LIMIT ((size_t)128 << 20) /* limit for text that cannot be cut: more cannot be encoded at once */

void wn_data_prepare_options_init(wn_data_prepare_options *options, size_t size) {
  WN_CHECK_OR(, WN_POINTER(options));
  const wn_data_prepare_options defaults = {
      .field = "text", .val_fraction = VAL_FRACTION, .document_break = "file", .layout = "llmc"};
  wn_options_default(&defaults, sizeof defaults, options, size);
}

/* left: bytes of the current line that are not yet encoded. */
static wn_status prepare_report(struct wn_prepare *j, const struct wn_lines *l, size_t left) {
  if (wn_context_cancelled(j->ctx)) return wn_fail(j->ctx, WN_ERR_CANCELLED, "%s: cancelled", l->path);
  const uint64_t done = j->files_done + wn_lines_done(l) - (l->stream ? 0 : left);
  if (j->o->progress) j->o->progress(j->o->user, done, j->files_total);
  return WN_OK;
}

/* --- documents --- */

/* The split of document i, an index into splits. */
static int split_of(const wn_data_prepare_options *o, uint64_t i) {
  const double u = wn_random_uniform(o->seed, WN_STREAM_SPLIT, 0, i);
  return u < o->val_fraction ? 1 : u < o->val_fraction + o->test_fraction ? 2 : 0;
}

/* Encodes and writes the first n buffered bytes. */
static wn_status flush(struct wn_prepare *j, size_t n, const struct wn_lines *at) {
  struct wn_encode_detail why;
  j->ids.count = 0;
  wn_status status = wn_tokenizer_encode_piece(j->tok, j->text, n, !j->begun, &j->ids, &why);
  if (status != WN_OK)
    return wn_fail(j->ctx, status, "%s:%" PRIu64 ": the document that ends here cannot be encoded: %s", at->path,
                   at->line, why.text[0] ? why.text : "out of memory");
  j->begun = true;
  WN_TRY(wn_token_writer_append(j->ctx, &j->split->writer, j->ids.data, j->ids.count));
  j->split->bytes += n;
  memmove(j->text, j->text + n, j->count - n);
  j->count -= n;
  return WN_OK;
}

static wn_status document_add(struct wn_prepare *j, const char *text, size_t bytes, const struct wn_lines *at) {
  if (bytes == 0) return WN_OK;
  if (!j->open) {
    j->split = &j->splits[split_of(j->o, j->documents++)];
    j->split->documents++;
    j->open = true;
    j->begun = false;
    j->count = 0;
    int32_t bos = wn_tokenizer_bos(j->tok);
    if (bos >= 0) WN_TRY(wn_token_writer_append(j->ctx, &j->split->writer, &bos, 1));
  }
  while (bytes > 0) {
    if (j->count == j->capacity) { /* a single line is longer than the buffer */
      size_t capacity = 2 * j->capacity;
      if (capacity > BUFFER_LIMIT)
        return wn_fail(j->ctx, WN_ERR_UNSUPPORTED,
                       "%s:%" PRIu64 ": more than %zu bytes of a document without a newline that the tokenizer can cut "
                       "at",
                       at->path, at->line, j->capacity);
      WN_TRY(WN_RESIZE(j->ctx, "document", &j->text, j->count, capacity));
      j->capacity = capacity;
    }
    size_t n = j->capacity - j->count < bytes ? j->capacity - j->count : bytes;
    memcpy(j->text + j->count, text, n);
    j->count += n;
    text += n;
    bytes -= n;
    if (j->count == j->capacity) {
      size_t cut = wn_tokenizer_cut(j->tok, j->text, j->count);
      if (cut) WN_TRY(flush(j, cut, at));
      WN_TRY(prepare_report(j, at, bytes)); /* a line may be a whole corpus */
    }
  }
  return WN_OK;
}

static wn_status prepare_document_end(struct wn_prepare *j, const struct wn_lines *at) {
  if (!j->open) return WN_OK;
  WN_TRY(flush(j, j->count, at));
  j->open = false;
  j->split->bytes++;
  if (wn_tokenizer_bos(j->tok) >= 0) return WN_OK;
  return wn_token_writer_append(j->ctx, &j->split->writer, j->separator, 1);
}

/* --- files --- */

static bool is_blank(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (!strchr(" \t\r\n\f\v", text[i]) || !text[i]) return false;
  return true;
}

static wn_status check_utf8(struct wn_prepare *j, const struct wn_lines *l, const char *text, size_t bytes) {
  size_t bad;
  if (!wn_tokenizer_wants_utf8(j->tok) || wn_utf8_check(text, bytes, &bad)) return WN_OK;
  return wn_fail(j->ctx, WN_ERR_FORMAT, "%s:%" PRIu64 ": not UTF-8 at byte %" PRIu64 " (0x%02x)", l->path, l->line,
                 l->offset + bad, (unsigned char)text[bad]);
}

/* A pipe has no name that tells its type, and a file may have a wrong one. */
static void warn_of_json(const struct wn_prepare *j, const struct wn_lines *l, const char *text, size_t bytes) {
  if (*text != '{' || wn_json_count(text, bytes) > WN_LIMIT_LINE_VALUES) return;
  json_t *object = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
  if (json_is_string(json_object_get(object, j->o->field)))
    wn_log(j->ctx, WN_LOG_WARNING,
           "%s: its first line is a JSON object with \"%s\", and it is read as plain text: JSON lines are files whose "
           "names end in .jsonl, packed ones in .jsonl.gz or .jsonl.zst",
           l->path, j->o->field);
  json_decref(object);
}

static wn_status prepare_text(struct wn_prepare *j, struct wn_lines *l) {
  const char *text;
  size_t bytes;
  bool newline = false; /* a newline that belongs to the document only if more of it follows */
  for (;;) {
    WN_TRY(wn_lines_next(j->ctx, l, &text, &bytes));
    if (bytes == 0) break;
    if ((l->line & 1023) == 0) WN_TRY(prepare_report(j, l, 0));
    WN_TRY(check_utf8(j, l, text, bytes));
    j->bytes += bytes;
    if (l->line == 1 && bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) { /* a byte order mark */
      text += 3;
      bytes -= 3;
    }
    if (l->line == 1 && bytes > 0) warn_of_json(j, l, text, bytes);
    if (j->breaks == WN_BREAK_FILE) {
      WN_TRY(document_add(j, text, bytes, l));
      continue;
    }
    if (is_blank(text, bytes)) {
      WN_TRY(prepare_document_end(j, l));
      newline = false;
      continue;
    }
    if (newline) WN_TRY(document_add(j, "\n", 1, l));
    newline = bytes > 0 && text[bytes - 1] == '\n';
    if (newline) bytes--;
    if (newline && bytes > 0 && text[bytes - 1] == '\r') bytes--;
    WN_TRY(document_add(j, text, bytes, l));
    if (j->breaks == WN_BREAK_LINE) {
      WN_TRY(prepare_document_end(j, l));
      newline = false;
    }
  }
  return prepare_document_end(j, l);
}

static wn_status prepare_json_line(struct wn_prepare *j, struct wn_lines *l, const char *text, size_t bytes) {
  const size_t values = wn_json_count(text, bytes);
  if (values > WN_LIMIT_LINE_VALUES)
    return wn_fail(j->ctx, WN_ERR_FORMAT, "%s:%" PRIu64 ": the JSON has about %zu values; a line has at most %zu",
                   l->path, l->line, values, WN_LIMIT_LINE_VALUES);
  json_error_t error;
  /* Only strings are used. Integers are read as reals, since they may exceed jansson's range: 64-bit hashes. */
  json_t *object = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
  wn_status status = WN_OK;
  if (!object)
    return wn_fail(j->ctx, WN_ERR_FORMAT, "%s:%" PRIu64 ": malformed JSON at column %d: %s", l->path, l->line,
                   error.column, error.text);
  json_t *value = json_object_get(object, j->o->field);
  if (!json_is_object(object))
    status = wn_fail(j->ctx, WN_ERR_FORMAT, "%s:%" PRIu64 ": expected one JSON object per line", l->path, l->line);
  else if (!value)
    status = wn_fail(j->ctx, WN_ERR_FORMAT, "%s:%" PRIu64 ": no field \"%s\"", l->path, l->line, j->o->field);
  else if (!json_is_string(value))
    status =
        wn_fail(j->ctx, WN_ERR_FORMAT, "%s:%" PRIu64 ": field \"%s\" is not a string", l->path, l->line, j->o->field);
  else
    status = document_add(j, json_string_value(value), json_string_length(value), l);
  json_decref(object);
  WN_TRY(status);
  return prepare_document_end(j, l);
}

static wn_status prepare_jsonl(struct wn_prepare *j, struct wn_lines *l) {
  const char *text;
  size_t bytes;
  for (;;) {
    WN_TRY(wn_lines_next(j->ctx, l, &text, &bytes));
    if (bytes == 0) return WN_OK;
    if ((l->line & 255) == 0) WN_TRY(prepare_report(j, l, 0));
    j->bytes += bytes;
    if (l->line == 1 && bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) {
      text += 3;
      bytes -= 3;
    }
    if (!is_blank(text, bytes)) WN_TRY(prepare_json_line(j, l, text, bytes));
  }
}

static wn_status prepare_file(struct wn_prepare *j, const char *path) {
  const uint64_t documents = j->documents, tokens = wn_prepare_tokens(j);
  const bool stream = wn_path_is_stream(path);
  uint64_t bytes = 0, sum = 0;
  if (!stream) WN_TRY(wn_prepare_sum(j, path, &bytes, &sum));
  struct wn_lines l;
  wn_status status = wn_lines_open(j->ctx, path, &l);
  if (status == WN_OK) {
    if (stream) j->files_total += l.file_bytes; /* standard input may be a regular file */
    status = wn_input_is_jsonl(path) ? prepare_jsonl(j, &l) : prepare_text(j, &l);
  }
  if (status == WN_OK) status = prepare_report(j, &l, 0);
  j->files_done += l.file_bytes;
  if (stream) bytes = l.next_offset;
  wn_lines_close(&l);
  return status == WN_OK ? wn_prepare_finished(j, path, bytes, stream ? NULL : &sum, documents, tokens) : status;
}

/* The caller's own texts. */
static wn_status prepare_texts(struct wn_prepare *j) {
  const uint64_t documents = j->documents, tokens = wn_prepare_tokens(j), before = j->bytes;
  struct wn_lines at = {.path = "text"};
  struct wn_checksum_stream sum;
  const char *text;
  size_t bytes;
  wn_checksum_begin(&sum);
  while (j->o->next_text(j->o->texts, &text, &bytes)) {
    at.line++;
    if (!text) return wn_fail(j->ctx, WN_ERR_ARGUMENT, "text %" PRIu64 " is NULL", at.line);
    WN_TRY(check_utf8(j, &at, text, bytes));
    WN_TRY(document_add(j, text, bytes, &at));
    WN_TRY(prepare_document_end(j, &at));
    wn_checksum_add(&sum, text, bytes);
    j->bytes += bytes;
    if ((at.line & 255) == 0) WN_TRY(prepare_report(j, &at, 0));
  }
  WN_TRY(prepare_report(j, &at, 0)); /* it may have been cancelled by next_text */
  const uint64_t end = wn_checksum_end(&sum);
  return wn_prepare_finished(j, NULL, j->bytes - before, &end, documents, tokens);
}

/* --- splits by byte counts --- */

static bool is_by_place(const wn_data_prepare_options *o) {
  return o->val_bytes > 0 || o->test_bytes > 0;
}

static wn_status check_by_place(struct wn_prepare *j) {
  const wn_data_prepare_options *o = j->o;
  if (o->next_text) return wn_fail(j->ctx, WN_ERR_ARGUMENT, "splits by byte counts take plain files, no texts");
  if (o->test_fraction > 0)
    return wn_fail(j->ctx, WN_ERR_ARGUMENT, "a test fraction of %g with splits by byte counts; one or the other",
                   o->test_fraction);
  if (o->val_fraction > 0 && o->val_fraction != VAL_FRACTION)
    return wn_fail(j->ctx, WN_ERR_ARGUMENT, "a validation fraction of %g with splits by byte counts; one or the other",
                   o->val_fraction);
  if (j->breaks != WN_BREAK_FILE)
    return wn_fail(
        j->ctx, WN_ERR_ARGUMENT,
        "document break \"%s\" with splits by byte counts, which take the files as they are; one or the other",
        o->document_break);
  if (strcmp(wn_tokenizer_kind(j->tok), "bytes") != 0)
    return wn_fail(
        j->ctx, WN_ERR_ARGUMENT,
        "splits by byte counts are for the tokenizer \"bytes\"; this one is \"%s\", whose tokens a cut could "
        "break",
        wn_tokenizer_kind(j->tok));
  for (size_t i = 0; i < j->inputs.count; i++) {
    const char *path = j->inputs.paths[i];
    if (wn_lines_packed(path) || wn_input_is_jsonl(path) || wn_path_is_stream(path))
      return wn_fail(j->ctx, WN_ERR_ARGUMENT, "%s: splits by byte counts take plain files as they are", path);
  }
  uint64_t held;
  if (__builtin_add_overflow(o->val_bytes, o->test_bytes, &held) || held >= j->files_total)
    return wn_fail(j->ctx, WN_ERR_ARGUMENT,
                   "the input has %" PRIu64 " bytes; %" PRIu64 " for validation and %" PRIu64
                   " for test leave none to train on",
                   j->files_total, o->val_bytes, o->test_bytes);
  return WN_OK;
}

/* The bytes unchanged: each is a token. */
static wn_status prepare_by_place(struct wn_prepare *j) {
  enum { PIECE = 1 << 14 };
  const wn_data_prepare_options *o = j->o;
  const uint64_t ends[3] = {j->files_total - o->val_bytes - o->test_bytes, j->files_total - o->test_bytes,
                            j->files_total};
  int32_t ids[PIECE];
  int k = 0;
  for (size_t i = 0; i < j->inputs.count; i++) {
    const char *path = j->inputs.paths[i];
    struct wn_map map;
    WN_TRY(wn_map_open(j->ctx, path, &map));
    const uint64_t before = j->bytes, sum = wn_checksum(map.data, map.bytes);
    wn_status status = WN_OK;
    for (size_t at = 0; at < map.bytes && status == WN_OK;) {
      while (k < 2 && j->bytes == ends[k]) k++;
      uint64_t n = map.bytes - at < PIECE ? map.bytes - at : PIECE;
      if (n > ends[k] - j->bytes) n = ends[k] - j->bytes;
      if (n == 0) { /* the file is now shorter than when its size was read */
        status = wn_fail(j->ctx, WN_ERR_IO, "%s: the file changes while it is read", path);
        break;
      }
      for (uint64_t t = 0; t < n; t++) ids[t] = map.data[at + t];
      status = wn_token_writer_append(j->ctx, &j->splits[k].writer, ids, n);
      j->splits[k].bytes += n;
      j->bytes += n;
      at += n;
      if (status == WN_OK && wn_context_cancelled(j->ctx))
        status = wn_fail(j->ctx, WN_ERR_CANCELLED, "%s: cancelled", path);
      if (o->progress && (at == map.bytes || (j->bytes >> 20) != ((j->bytes - n) >> 20)))
        o->progress(o->user, j->bytes, j->files_total);
    }
    wn_map_close(&map);
    WN_TRY(status);
    j->documents++;
    WN_TRY(wn_prepare_finished(j, path, j->bytes - before, &sum, j->documents - 1, before));
  }
  for (int s = 0; s < 3; s++) j->splits[s].documents = j->splits[s].bytes > 0;
  if (j->bytes == j->files_total) return WN_OK;
  return wn_fail(j->ctx, WN_ERR_IO, "%s: the file changes while it is read", j->inputs.paths[j->inputs.count - 1]);
}

/* --- all steps --- */

static wn_status prepare_check_options(struct wn_prepare *j) {
  const wn_data_prepare_options *o = j->o;
  if (o->input_count < 1 && !o->next_text) return wn_fail(j->ctx, WN_ERR_ARGUMENT, "no input files");
  if (!o->tokenizer || !*o->tokenizer) return wn_fail(j->ctx, WN_ERR_ARGUMENT, "no tokenizer is named");
  if (!o->out_dir || !*o->out_dir) return wn_fail(j->ctx, WN_ERR_ARGUMENT, "no output folder is named");
  if (!o->field || !*o->field) return wn_fail(j->ctx, WN_ERR_ARGUMENT, "the JSON field has no name");
  if (!(o->val_fraction >= 0 && o->val_fraction < 1))
    return wn_fail(j->ctx, WN_ERR_ARGUMENT, "a validation fraction of %g is out of range [0, 1)", o->val_fraction);
  if (!(o->test_fraction >= 0 && o->val_fraction + o->test_fraction < 1))
    return wn_fail(
        j->ctx, WN_ERR_ARGUMENT,
        "a test fraction of %g is out of range: with the validation fraction of %g it must be from 0 to less "
        "than 1",
        o->test_fraction, o->val_fraction);
  const char *b = o->document_break ? o->document_break : "file";
  if (!strcmp(b, "file"))
    j->breaks = WN_BREAK_FILE;
  else if (!strcmp(b, "blank"))
    j->breaks = WN_BREAK_BLANK;
  else if (!strcmp(b, "line"))
    j->breaks = WN_BREAK_LINE;
  else
    return wn_fail(j->ctx, WN_ERR_ARGUMENT, "document break \"%s\" is not one of blank, line, file", b);
  return WN_OK;
}

/* Checks that every input exists before anything is written. */
static wn_status prepare_check_inputs(struct wn_prepare *j) {
  for (size_t i = 0; i < j->inputs.count; i++) {
    struct wn_lines l;
    if (wn_path_is_stream(j->inputs.paths[i])) continue; /* a stream can be read only once */
    wn_status status = wn_lines_open(j->ctx, j->inputs.paths[i], &l);
    j->files_total += l.file_bytes;
    wn_lines_close(&l);
    WN_TRY(status);
  }
  return WN_OK;
}

/* documents: how many each split has. */
static wn_status check_splits(struct wn_prepare *j, const uint64_t *documents /* [3] */) {
  const uint64_t all = documents[0] + documents[1] + documents[2];
  const char *empty = documents[0] == 0                              ? "training"
                      : documents[1] == 0 && j->o->val_fraction > 0  ? "validation"
                      : documents[2] == 0 && j->o->test_fraction > 0 ? "test"
                                                                     : NULL;
  if (!empty) return WN_OK;
  return wn_fail(j->ctx, WN_ERR_ARGUMENT,
                 "none of the %" PRIu64 " document%s fell to the %s split; break the text into more documents "
                 "(document-break blank or line), or choose another fraction for it (0: none) or another seed",
                 all, all == 1 ? "" : "s", empty);
}

/* If each file is one document (none if it is empty), an empty split is known before encoding, which may take
 * minutes. */
static wn_status check_files_as_documents(struct wn_prepare *j) {
  uint64_t documents[3] = {0};
  if (j->breaks != WN_BREAK_FILE || j->o->next_text) return WN_OK;
  for (size_t i = 0; i < j->inputs.count; i++) {
    if (wn_input_is_jsonl(j->inputs.paths[i])) return WN_OK;
    documents[split_of(j->o, (uint64_t)i)]++;
  }
  return check_splits(j, documents);
}

static wn_status check_result(struct wn_prepare *j) {
  if (j->documents == 0 && j->inputs.count == 0) return wn_fail(j->ctx, WN_ERR_FORMAT, "no text in the texts");
  if (j->documents == 0)
    return wn_fail(j->ctx, WN_ERR_FORMAT, "%s%s: no text in it",
                   strcmp(j->inputs.paths[0], "-") ? j->inputs.paths[0] : "standard input",
                   j->inputs.count > 1 ? " and the others" : "");
  return check_splits(j, (uint64_t[3]){j->splits[0].documents, j->splits[1].documents, j->splits[2].documents});
}

static wn_status write_summary(struct wn_prepare *j, const char *path) {
  int32_t bos = wn_tokenizer_bos(j->tok);
  json_t *test = wn_prepare_has_test(j->o) ? wn_prepare_split_json(&j->splits[2]) : NULL;
  json_t *json = json_pack("{s:s, s:i, s:i, s:s, s:o, s:o, s:o*, s:O}", "tokenizer", wn_tokenizer_kind(j->tok),
                           "vocab_size", wn_tokenizer_vocab_size(j->tok), "document_token", bos, "layout",
                           j->splits[0].writer.layout, "train", wn_prepare_split_json(&j->splits[0]), "val",
                           wn_prepare_split_json(&j->splits[1]), "test", test, "inputs", j->manifest);
  if (!json) return wn_fail(j->ctx, WN_ERR_MEMORY, "out of memory: %s", path);
  wn_status status = wn_json_save_file(j->ctx, path, json);
  json_decref(json);
  return status;
}

/* Removes the test split of an earlier preparation in the same folder, unless this one has a test split itself: it
 * holds other documents and maybe tokens of another tokenizer. */
static wn_status drop_former_test(struct wn_prepare *j) {
  char path[4096];
  json_t *json;
  if (wn_prepare_has_test(j->o) || wn_path_join(NULL, path, sizeof path, j->o->out_dir, "data.json") != WN_OK)
    return WN_OK;
  if (!wn_path_exists(path)) return WN_OK;
  const wn_status status = wn_json_load_file(j->ctx, WN_JSON_TABLE, path, &json);
  if (status == WN_ERR_MEMORY) return status;
  if (status != WN_OK) return WN_OK; /* not written by wn_data_prepare */
  const bool had = json_is_object(json_object_get(json, "test"));
  json_decref(json);
  return had ? wn_folder_drop(j->ctx, &j->folder, "test.bin") : WN_OK;
}

/* A model's folder has its own tokenizer, which would be overwritten. */
static wn_status check_no_model(struct wn_prepare *j) {
  if (!wn_folder_has(j->o->out_dir, "config.json")) return WN_OK;
  return wn_fail(j->ctx, WN_ERR_ARGUMENT, "%s holds a model (config.json): choose another folder for the data",
                 j->o->out_dir);
}

/* A list of inputs must fit the limit of data.json. */
static wn_status prepare_check_list(struct wn_prepare *j) {
  enum { RECORD = 200 };
  size_t bytes = 0;
  j->resumable = !is_by_place(j->o) && !j->o->next_text;
  for (size_t i = 0; i < j->inputs.count; i++) {
    bytes += strlen(j->inputs.paths[i]) + RECORD;
    if (wn_path_is_stream(j->inputs.paths[i])) j->resumable = false;
  }
  if (bytes <= 32 * WN_MIB) return WN_OK;
  return wn_fail(j->ctx, WN_ERR_ARGUMENT,
                 "%zu inputs are more than data.json can list, about 100,000; put several into one file",
                 j->inputs.count);
}

static wn_status prepare_run(struct wn_prepare *j) {
  static const char *const names[3] = {"train.bin", "val.bin", "test.bin"};
  const wn_data_prepare_options *o = j->o;
  struct wn_token_kept had[3] = {{0}};
  char path[4096], kept[4096];
  WN_TRY(prepare_check_options(j));
  WN_TRY(check_no_model(j));
  WN_TRY(wn_tokenizer_load(j->ctx, o->tokenizer, &j->tok));
  WN_TRY(wn_inputs_list(j->ctx, o->inputs, o->input_count, &j->inputs));
  WN_TRY(prepare_check_list(j));
  WN_TRY(prepare_check_inputs(j));
  WN_TRY(is_by_place(o) ? check_by_place(j) : check_files_as_documents(j));
  WN_TRY(wn_folder_begin(j->ctx, o->out_dir, &j->folder));
  WN_TRY(drop_former_test(j));
  j->separator[0] = wn_tokenizer_eos(j->tok);
  if (j->separator[0] < 0) { /* a newline: its last token, since a model may put other tokens before it */
    WN_TRY(wn_tokenizer_encode_piece(j->tok, "\n", 1, true, &j->ids, NULL));
    j->separator[0] = j->ids.count ? j->ids.data[j->ids.count - 1] : 0;
  }
  WN_TRY(WN_ALLOC(j->ctx, "document", BUFFER_BYTES, &j->text));
  j->capacity = BUFFER_BYTES;
  WN_TRY(wn_tokenizer_write(j->ctx, j->tok, &j->folder));
  WN_TRY(wn_kept_begin(j, had));
  for (int k = 0; k < (wn_prepare_has_test(o) ? 3 : 2); k++) {
    WN_TRY(wn_path_join(j->ctx, path, sizeof path, j->folder.next, names[k]));
    WN_TRY(wn_kept_path(j, names[k], kept));
    had[k].path = kept;
    WN_TRY(
        wn_token_writer_open(j->ctx, path, o->layout, wn_tokenizer_vocab_size(j->tok), &had[k], &j->splits[k].writer));
  }
  if (is_by_place(o)) {
    WN_TRY(prepare_by_place(j));
  } else {
    for (size_t i = json_array_size(j->manifest); i < j->inputs.count; i++) {
      WN_TRY(prepare_file(j, j->inputs.paths[i]));
      if (i + 1 < j->inputs.count) WN_TRY(wn_kept_save(j));
    }
    if (o->next_text) WN_TRY(prepare_texts(j));
    WN_TRY(check_result(j));
  }
  WN_TRY(wn_path_join(j->ctx, path, sizeof path, j->folder.next, "data.json"));
  WN_TRY(write_summary(j, path));
  WN_TRY(wn_kept_end(j));
  return wn_folder_commit(j->ctx, &j->folder, NULL);
}

wn_status wn_data_prepare(wn_context *ctx, const wn_data_prepare_options *options, wn_data_prepare_result *result) {
  WN_CHECK_WORK(WN_POINTER(result));
  wn_data_prepare_options own;
  *result = (wn_data_prepare_result){0};
  WN_TRY(WN_OPTIONS_READ(ctx, wn_data_prepare_options, options, &own));
  struct wn_prepare j = {.ctx = ctx, .o = &own, .folder = {.fd = -1, .next_fd = -1}};
  wn_status status = prepare_run(&j);
  if (status == WN_OK)
    *result = (wn_data_prepare_result){.documents = j.documents,
                                       .train_tokens = j.splits[0].writer.count,
                                       .val_tokens = j.splits[1].writer.count,
                                       .bytes = j.bytes,
                                       .train_bytes = j.splits[0].bytes,
                                       .val_bytes = j.splits[1].bytes,
                                       .test_tokens = j.splits[2].writer.count,
                                       .test_bytes = j.splits[2].bytes};
  for (int k = 0; k < 3; k++)
    j.kept ? wn_writer_keep(&j.splits[k].writer.file) : wn_token_writer_abort(&j.splits[k].writer);
  if (!j.kept && j.manifest) (void)wn_folder_discard(NULL, &j.folder, WN_KEPT);
  wn_folder_abort(&j.folder);
  json_decref(j.command);
  json_decref(j.manifest);
  wn_ids_clear(&j.ids);
  wn_inputs_clear(&j.inputs);
  wn_free(j.text);
  wn_tokenizer_destroy(j.tok);
  return status;
}
