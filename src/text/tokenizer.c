/* Tokenizers: bytes, and SentencePiece (Kudo and Richardson, "SentencePiece: A simple and language independent subword
 * tokenizer and detokenizer for Neural Text Processing", EMNLP 2018).
 *
 * Long texts are encoded in pieces that end at a newline, in time and memory linear in the text. This gives the ids of
 * the whole wherever newline is a token of its own, which is tried out as a model is loaded. A piece in the middle must
 * not get the space that SentencePiece puts before a text: it is encoded with a newline before it, whose ids are
 * dropped again.
 *
 * U+2581 stands for a space inside SentencePiece. Where the text itself has one, its three bytes are written as byte
 * tokens, so that it comes back as it was.
 *
 * Decoding is our own, piece by piece, so that a stream and a whole text take the same path. Bytes that are no UTF-8
 * become U+FFFD each, as SentencePiece has it; the bytes tokenizer gives bytes back as they were, except in a stream,
 * which may end on a terminal. */
#include "text/tokenizer.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "text/spm.h"
#include "text/spm_check.h"
#include "text/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODEL_LIMIT ((size_t)256 << 20)
#define PIECE_BYTES ((size_t)1 << 16)  /* what is handed to SentencePiece at once, where it can be cut */
#define WHOLE_LIMIT ((size_t)64 << 20) /* and where it cannot */
#define MODEL_NAME "tokenizer.model"
#define KIND_NAME "tokenizer.json"

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */

struct wn_tokenizer {
  int32_t vocab_size, bos, eos;
  struct wn_spm *spm; /* NULL: bytes */
  char *model;        /* the model file, [model_bytes] */
  size_t model_bytes;
  struct wn_spm_info info;
  bool cuttable;        /* at newlines */
  size_t prefix;        /* ids that "\n" alone has */
  int32_t byte_id[256]; /* -1: none */
};

void wn_tokens_free(int32_t *ids) {
  wn_free(ids);
}
void wn_text_free(char *text) {
  wn_free(text);
}

/* Room for `more` elements behind count. */
static wn_status grow(wn_context *ctx, const char *what, void **data, size_t element, size_t count, size_t more,
                      size_t *capacity) {
  size_t need, bytes;
  if (!wn_add_size(count, more, &need)) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", what);
  if (need <= *capacity) return WN_OK;
  size_t room = *capacity > SIZE_MAX / 2 ? need : 2 * *capacity;
  if (room < need) room = need;
  if (room < 64) room = 64;
  if (!wn_mul_size(room, element, &bytes)) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", what);
  void *p;
  WN_TRY(wn_alloc(ctx, what, bytes, &p));
  if (count) memcpy(p, *data, count * element);
  wn_free(*data);
  *data = p;
  *capacity = room;
  return WN_OK;
}

wn_status wn_ids_add(wn_context *ctx, struct wn_ids *ids, const int32_t *more, size_t count) {
  if (count == 0) return WN_OK;
  void *data = ids->data;
  wn_status status = grow(ctx, "tokens", &data, sizeof *ids->data, ids->count, count, &ids->capacity);
  ids->data = data;
  WN_TRY(status);
  memcpy(ids->data + ids->count, more, count * sizeof *more);
  ids->count += count;
  return WN_OK;
}
void wn_ids_clear(struct wn_ids *ids) {
  wn_free(ids->data);
  *ids = (struct wn_ids){0};
}

bool wn_tokenizer_wants_utf8(const wn_tokenizer *tok) {
  return tok->spm != NULL;
}

/* --- encoding --- */

struct encoder {
  const wn_tokenizer *tok;
  struct wn_spm_ids *scratch;
  struct wn_spm_error error;
  char *line; /* a newline and a piece, [line_capacity] */
  size_t line_capacity;
};

/* One stretch of text without U+2581, at a document's beginning or after a newline or a byte token. */
static wn_status encode_stretch(struct encoder *e, const char *text, size_t bytes, bool first, struct wn_ids *ids) {
  if (bytes == 0) return WN_OK;
  size_t dropped = 0;
  if (!first) {
    void *line = e->line;
    wn_status status = grow(NULL, "text", &line, 1, 0, bytes + 1, &e->line_capacity);
    e->line = line;
    WN_TRY(status);
    e->line[0] = '\n';
    memcpy(e->line + 1, text, bytes);
    text = e->line;
    bytes++;
    dropped = e->tok->prefix;
  }
  if (!wn_spm_encode(e->tok->spm, text, bytes, e->scratch, &e->error)) return WN_ERR_FORMAT;
  size_t count = wn_spm_ids_count(e->scratch);
  if (count < dropped) {
    snprintf(e->error.text, sizeof e->error.text, "the tokenizer's newline is not a token of its own everywhere");
    return WN_ERR_FORMAT;
  }
  if (count == dropped) return WN_OK;
  return wn_ids_add(NULL, ids, wn_spm_ids_data(e->scratch) + dropped, count - dropped);
}

/* Text without U+2581, cut at newlines into pieces of about PIECE_BYTES. */
static wn_status encode_lines(struct encoder *e, const char *text, size_t bytes, bool first, struct wn_ids *ids) {
  while (bytes > 0) {
    size_t n = bytes;
    if (bytes > PIECE_BYTES && e->tok->cuttable) {
      const char *newline = memrchr(text, '\n', PIECE_BYTES);
      if (!newline) newline = memchr(text + PIECE_BYTES, '\n', bytes - PIECE_BYTES);
      if (newline) n = (size_t)(newline - text) + 1;
    }
    if (n > WHOLE_LIMIT) {
      snprintf(e->error.text, sizeof e->error.text,
               "%zu bytes without a place to cut are too long to encode (at most "
               "%zu)",
               n, WHOLE_LIMIT);
      return WN_ERR_UNSUPPORTED;
    }
    WN_TRY(encode_stretch(e, text, n, first, ids));
    first = false;
    text += n;
    bytes -= n;
  }
  return WN_OK;
}

static wn_status encode_text(struct encoder *e, const char *text, size_t bytes, bool first, struct wn_ids *ids) {
  const int32_t *byte_id = e->tok->byte_id;
  const int32_t mark[3] = {byte_id[0xE2], byte_id[0x96], byte_id[0x81]};
  bool has_mark = e->tok->cuttable && mark[0] >= 0 && mark[1] >= 0 && mark[2] >= 0;
  const char *found;
  while (has_mark && (found = memmem(text, bytes, space_mark, 3))) {
    size_t n = (size_t)(found - text);
    WN_TRY(encode_lines(e, text, n, first, ids));
    WN_TRY(wn_ids_add(NULL, ids, mark, 3));
    first = false;
    text += n + 3;
    bytes -= n + 3;
  }
  return encode_lines(e, text, bytes, first, ids);
}

wn_status wn_tokenizer_encode_piece(const wn_tokenizer *tok, const char *text, size_t bytes, bool first,
                                    struct wn_ids *ids, struct wn_encode_detail *why) {
  if (why) why->text[0] = 0;
  if (!tok->spm) {
    int32_t block[1024];
    for (size_t at = 0; at < bytes;) {
      size_t n = 0;
      while (n < 1024 && at < bytes) block[n++] = (unsigned char)text[at++];
      WN_TRY(wn_ids_add(NULL, ids, block, n));
    }
    return WN_OK;
  }
  struct encoder e = {.tok = tok, .scratch = wn_spm_ids_create()};
  wn_status status = e.scratch ? encode_text(&e, text, bytes, first, ids) : WN_ERR_MEMORY;
  if (why && status != WN_OK)
    snprintf(why->text, sizeof why->text, "%s", e.error.text[0] ? e.error.text : "out of memory");
  wn_spm_ids_destroy(e.scratch);
  wn_free(e.line);
  return status;
}

size_t wn_tokenizer_cut(const wn_tokenizer *tok, const char *text, size_t bytes) {
  if (!tok->spm) return bytes;
  const char *newline = tok->cuttable && bytes ? memrchr(text, '\n', bytes) : NULL;
  return newline ? (size_t)(newline - text) + 1 : 0;
}

wn_status wn_tokenizer_encode(wn_context *ctx, const wn_tokenizer *tok, const char *text, size_t bytes, bool add_bos,
                              bool add_eos, int32_t **out, size_t *count) {
  *out = NULL;
  *count = 0;
  size_t bad;
  if (tok->spm && !wn_utf8_check(text, bytes, &bad))
    return wn_fail(ctx, WN_ERR_FORMAT, "the text is not UTF-8 at byte %zu (0x%02x)", bad, (unsigned char)text[bad]);
  if (add_bos && tok->bos < 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "the tokenizer has no token that begins a text");
  if (add_eos && tok->eos < 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "the tokenizer has no token that ends a text");
  struct wn_ids ids = {0};
  struct wn_encode_detail why;
  void *data = NULL;
  /* never NULL, so that no tokens are not taken for a failure */
  wn_status status = grow(ctx, "tokens", &data, sizeof *ids.data, 0, bytes / 4 + 2, &ids.capacity);
  ids.data = data;
  if (status == WN_OK && add_bos) status = wn_ids_add(ctx, &ids, &tok->bos, 1);
  if (status == WN_OK) {
    status = wn_tokenizer_encode_piece(tok, text, bytes, true, &ids, &why);
    if (status != WN_OK) wn_fail(ctx, status, "the text cannot be encoded: %s", why.text);
  }
  if (status == WN_OK && add_eos) status = wn_ids_add(ctx, &ids, &tok->eos, 1);
  if (status != WN_OK) {
    wn_ids_clear(&ids);
    return status;
  }
  *out = ids.data;
  *count = ids.count;
  return WN_OK;
}

/* --- decoding --- */

struct bytes {
  char *data;
  size_t count, capacity;
};
static wn_status add_bytes(wn_context *ctx, struct bytes *b, const char *more, size_t n) {
  void *data = b->data;
  wn_status status = grow(ctx, "text", &data, 1, b->count, n + 1, &b->capacity); /* one for the NUL */
  b->data = data;
  WN_TRY(status);
  if (n) memcpy(b->data + b->count, more, n);
  b->count += n;
  b->data[b->count] = 0;
  return WN_OK;
}

struct decoder {
  bool at_start;   /* SentencePiece: the space before the text is still to come */
  char pending[4]; /* the beginning of a sequence */
  int pending_count;
};

/* Bytes through the UTF-8 filter: complete sequences go out, what cannot become one goes out as U+FFFD a byte. */
static wn_status filter(wn_context *ctx, struct decoder *d, const char *more, size_t n, struct bytes *out) {
  size_t bad;
  if (d->pending_count == 0 && wn_utf8_check(more, n, &bad)) return add_bytes(ctx, out, more, n);
  for (size_t i = 0; i < n; i++) {
    d->pending[d->pending_count++] = more[i];
    while (d->pending_count > 0) {
      int length = wn_utf8_sequence(d->pending, (size_t)d->pending_count);
      if (length < 0) break;
      if (length == 0)
        WN_TRY(add_bytes(ctx, out, "\xEF\xBF\xBD", 3));
      else
        WN_TRY(add_bytes(ctx, out, d->pending, (size_t)length));
      int gone = length ? length : 1;
      memmove(d->pending, d->pending + gone, (size_t)(d->pending_count - gone));
      d->pending_count -= gone;
    }
  }
  return WN_OK;
}

static wn_status decode_text_piece(wn_context *ctx, const wn_tokenizer *tok, struct decoder *d, const char *text,
                                   size_t n, struct bytes *out) {
  if (d->at_start && (tok->info.add_dummy_prefix || tok->info.remove_extra_whitespaces) && n >= 3 &&
      !memcmp(text, space_mark, 3)) {
    text += 3;
    n -= 3;
    d->at_start = tok->info.remove_extra_whitespaces && n == 0;
  }
  if (n) d->at_start = false;
  while (n > 0) {
    const char *mark = memmem(text, n, space_mark, 3);
    size_t plain = mark ? (size_t)(mark - text) : n;
    if (plain) WN_TRY(filter(ctx, d, text, plain, out));
    if (mark) WN_TRY(filter(ctx, d, " ", 1, out));
    text += plain + (mark ? 3 : 0);
    n -= plain + (mark ? 3 : 0);
  }
  return WN_OK;
}

static wn_status decode_piece(wn_context *ctx, const wn_tokenizer *tok, struct decoder *d, int32_t id, bool raw,
                              struct bytes *out) {
  if (id < 0 || id >= tok->vocab_size)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "token %d is outside the tokenizer's vocabulary of %d", id, tok->vocab_size);
  if (!tok->spm) {
    char byte = (char)(unsigned char)id;
    return raw ? add_bytes(ctx, out, &byte, 1) : filter(ctx, d, &byte, 1, out);
  }
  const char *text;
  size_t n;
  switch (wn_spm_piece(tok->spm, id, &text, &n)) {
  case WN_SPM_CONTROL:
    return WN_OK;
  case WN_SPM_UNKNOWN:
    d->at_start = false;
    return filter(ctx, d, tok->info.unk_surface, strlen(tok->info.unk_surface), out);
  case WN_SPM_BYTE: {
    d->at_start = false;
    char byte = 0;
    for (int i = 0; i < 256; i++)
      if (tok->byte_id[i] == id) byte = (char)(unsigned char)i;
    return filter(ctx, d, &byte, 1, out);
  }
  case WN_SPM_TEXT:
    break;
  }
  return decode_text_piece(ctx, tok, d, text, n, out);
}

wn_status wn_tokenizer_decode(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count, char **text,
                              size_t *bytes) {
  *text = NULL;
  *bytes = 0;
  struct decoder d = {.at_start = true};
  struct bytes out = {0};
  wn_status status = add_bytes(ctx, &out, "", 0);
  for (size_t i = 0; i < count && status == WN_OK; i++) status = decode_piece(ctx, tok, &d, ids[i], true, &out);
  /* A sequence that never became complete. */
  for (int i = 0; i < d.pending_count && status == WN_OK; i++) status = add_bytes(ctx, &out, "\xEF\xBF\xBD", 3);
  if (status != WN_OK) {
    wn_free(out.data);
    return status;
  }
  *text = out.data;
  *bytes = out.count;
  return WN_OK;
}

struct wn_text_stream {
  const wn_tokenizer *tok;
  struct decoder decoder;
  struct bytes out;
};

wn_status wn_text_stream_create(wn_context *ctx, const wn_tokenizer *tok, wn_text_stream **out) {
  *out = NULL;
  void *p;
  WN_TRY(wn_alloc(ctx, "text stream", sizeof(wn_text_stream), &p));
  wn_text_stream *s = p;
  s->tok = tok;
  s->decoder.at_start = true;
  wn_status status = add_bytes(ctx, &s->out, "", 0);
  if (status != WN_OK) {
    wn_text_stream_destroy(s);
    return status;
  }
  *out = s;
  return WN_OK;
}
void wn_text_stream_destroy(wn_text_stream *s) {
  if (!s) return;
  wn_free(s->out.data);
  wn_free(s);
}
wn_status wn_text_stream_push(wn_context *ctx, wn_text_stream *s, int32_t id, const char **text, size_t *bytes) {
  s->out.count = 0;
  s->out.data[0] = 0;
  *text = s->out.data;
  *bytes = 0;
  WN_TRY(decode_piece(ctx, s->tok, &s->decoder, id, false, &s->out));
  *text = s->out.data;
  *bytes = s->out.count;
  return WN_OK;
}

/* --- loading --- */

/* Tries out whether newline is a token of its own: the ids of "a\nb" must be those of "a", newline, and what "\nb" has
 * after newline. */
static wn_status find_cuts(wn_context *ctx, const char *path, wn_tokenizer *tok) {
  struct wn_spm_ids *scratch = wn_spm_ids_create();
  struct wn_spm_error error;
  struct wn_ids ids[4] = {0};
  static const char *const texts[4] = {"\n", "a", "\nb", "a\nb"};
  wn_status status = scratch ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: tokens");
  for (int i = 0; i < 4 && status == WN_OK; i++) {
    if (!wn_spm_encode(tok->spm, texts[i], strlen(texts[i]), scratch, &error))
      status = wn_fail(ctx, WN_ERR_FORMAT, "%s: the tokenizer does not work: %s", path, error.text);
    else
      status = wn_ids_add(ctx, &ids[i], wn_spm_ids_data(scratch), wn_spm_ids_count(scratch));
  }
  if (status == WN_OK && ids[0].count > 0 && !tok->info.newline_inside) {
    int32_t newline = ids[0].data[ids[0].count - 1];
    const char *text;
    size_t n, prefix = ids[0].count;
    enum wn_spm_type type = wn_spm_piece(tok->spm, newline, &text, &n);
    bool own = (type == WN_SPM_TEXT && n == 1 && *text == '\n') || newline == tok->byte_id['\n'];
    own = own && ids[2].count >= prefix && !memcmp(ids[2].data, ids[0].data, prefix * sizeof(int32_t));
    size_t tail = own ? ids[2].count - prefix : 0;
    own = own && ids[3].count == ids[1].count + 1 + tail && ids[3].data[ids[1].count] == newline &&
          !memcmp(ids[3].data, ids[1].data, ids[1].count * sizeof(int32_t)) &&
          !memcmp(ids[3].data + ids[1].count + 1, ids[2].data + prefix, tail * sizeof(int32_t));
    tok->cuttable = own;
    tok->prefix = prefix;
  }
  for (int i = 0; i < 4; i++) wn_ids_clear(&ids[i]);
  wn_spm_ids_destroy(scratch);
  return status;
}

static wn_status load_sentencepiece(wn_context *ctx, const char *path, wn_tokenizer *tok) {
  WN_TRY(wn_file_read(ctx, path, MODEL_LIMIT, &tok->model, &tok->model_bytes));
  WN_TRY(wn_spm_check(ctx, path, tok->model, tok->model_bytes, &tok->info));
  struct wn_spm_error error;
  tok->spm = wn_spm_create(tok->model, tok->model_bytes, &error);
  if (!tok->spm) return wn_fail(ctx, WN_ERR_FORMAT, "%s: SentencePiece refuses the model: %s", path, error.text);
  tok->vocab_size = wn_spm_count(tok->spm);
  tok->bos = wn_spm_bos(tok->spm);
  tok->eos = wn_spm_eos(tok->spm);
  for (int i = 0; i < 256; i++) tok->byte_id[i] = -1;
  for (int32_t id = 0; id < tok->vocab_size; id++) {
    const char *text;
    size_t n;
    unsigned byte;
    if (wn_spm_piece(tok->spm, id, &text, &n) == WN_SPM_BYTE && sscanf(text, "<0x%2X>", &byte) == 1)
      tok->byte_id[byte & 255] = id;
  }
  return find_cuts(ctx, path, tok);
}

/* tokenizer.json of a folder: {"kind": "bytes"}. */
static wn_status check_kind(wn_context *ctx, const char *path) {
  json_t *json;
  WN_TRY(wn_json_load_file(ctx, path, &json));
  const char *kind = json_string_value(json_object_get(json, "kind"));
  wn_status status = WN_OK;
  if (!kind)
    status = wn_fail(ctx, WN_ERR_UNSUPPORTED,
                     "%s: not a tokenizer that can be read here (\"kind\": \"bytes\", or a "
                     "SentencePiece " MODEL_NAME " beside it)",
                     path);
  else if (strcmp(kind, "bytes"))
    status = wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: \"kind\" is \"%s\", expected \"bytes\"", path, kind);
  json_decref(json);
  return status;
}

wn_status wn_tokenizer_load(wn_context *ctx, const char *spec, wn_tokenizer **out) {
  *out = NULL;
  char path[4096];
  bool bytes = !strcmp(spec, "bytes");
  if (!bytes && wn_path_is_dir(spec)) {
    WN_TRY(wn_path_join(ctx, path, sizeof path, spec, MODEL_NAME));
    if (!wn_path_exists(path)) {
      WN_TRY(wn_path_join(ctx, path, sizeof path, spec, KIND_NAME));
      if (!wn_path_exists(path))
        return wn_fail(ctx, WN_ERR_IO, "%s: the folder has no tokenizer (" MODEL_NAME " or " KIND_NAME ")", spec);
      WN_TRY(check_kind(ctx, path));
      bytes = true;
    }
    spec = path;
  }
  void *p;
  WN_TRY(wn_alloc(ctx, "tokenizer", sizeof(wn_tokenizer), &p));
  wn_tokenizer *tok = p;
  tok->vocab_size = 256;
  tok->bos = tok->eos = -1;
  wn_status status = bytes ? WN_OK : load_sentencepiece(ctx, spec, tok);
  if (status != WN_OK) {
    wn_tokenizer_destroy(tok);
    return status;
  }
  *out = tok;
  return WN_OK;
}

void wn_tokenizer_destroy(wn_tokenizer *tok) {
  if (!tok) return;
  wn_spm_destroy(tok->spm);
  wn_free(tok->model);
  wn_free(tok);
}
int32_t wn_tokenizer_vocab_size(const wn_tokenizer *tok) {
  return tok->vocab_size;
}
int32_t wn_tokenizer_bos(const wn_tokenizer *tok) {
  return tok->bos;
}
int32_t wn_tokenizer_eos(const wn_tokenizer *tok) {
  return tok->eos;
}
const char *wn_tokenizer_kind(const wn_tokenizer *tok) {
  return tok->spm ? "sentencepiece" : "bytes";
}

wn_status wn_tokenizer_save(wn_context *ctx, const wn_tokenizer *tok, const char *dir) {
  static const char kind[] = "{\n  \"kind\": \"bytes\"\n}\n";
  char path[4096], other[4096];
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, tok->spm ? MODEL_NAME : KIND_NAME));
  WN_TRY(wn_path_join(ctx, other, sizeof other, dir, tok->spm ? KIND_NAME : MODEL_NAME));
  if (tok->spm)
    WN_TRY(wn_file_write(ctx, path, tok->model, tok->model_bytes));
  else
    WN_TRY(wn_file_write(ctx, path, kind, sizeof kind - 1));
  /* Another tokenizer's file of an earlier run would be loaded instead. */
  if (unlink(other) != 0 && errno != ENOENT)
    return wn_fail(ctx, WN_ERR_IO, "cannot remove %s: %s", other, strerror(errno));
  return WN_OK;
}
