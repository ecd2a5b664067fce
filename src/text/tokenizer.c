/* Encoding and decoding: bytes, byte-pair encoding (bpe.h), and SentencePiece (Kudo and Richardson, "SentencePiece: A
 * simple and language independent subword tokenizer and detokenizer for Neural Text Processing", EMNLP 2018).
 *
 * Long texts are encoded in pieces that end at a newline, in time and memory linear in the text. The ids are those of
 * the whole text if newline is always a token by itself, which is tested when a model is loaded. SentencePiece puts a
 * space before a text, but a piece in the middle must not get one: it is encoded with a newline before it, whose ids
 * are then dropped.
 *
 * Inside SentencePiece U+2581 means a space. A U+2581 in the text itself is written as three byte tokens, so that it is
 * decoded unchanged.
 *
 * Decoding is our own, token by token, so that a stream and a whole text take the same path. Each byte of invalid UTF-8
 * becomes U+FFFD, as in SentencePiece. The bytes tokenizer gives such bytes back unchanged, except in a stream, which
 * may be shown on a terminal. */
#include "text/tokenizer.h"
#include "base/alloc.h"
#include "base/misuse.h"
#include "base/number.h"
#include "text/normalize.h"
#include "text/pieces.h"
#include "text/tokenizer_kinds.h"
#include "text/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PIECE_BYTES ((size_t)1 << 16)  /* size of a piece, if the text can be cut */
#define WHOLE_LIMIT ((size_t)64 << 20) /* limit for a text that cannot be cut */

void wn_tokens_free(int32_t *ids) {
  wn_free(ids);
}
void wn_text_free(char *text) {
  wn_free(text);
}

bool wn_tokenizer_wants_utf8(const wn_tokenizer *tok) {
  return tok->spm != NULL;
}

/* --- encoding --- */

struct encoder {
  const wn_tokenizer *tok;
  struct wn_encode_detail *why; /* may be NULL */
  char *line;                   /* a newline and a piece, [line_capacity] */
  size_t line_capacity;
};

wn_status wn_tokenizer_segment(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped,
                               struct wn_ids *ids, size_t *count) {
  return (tok->info.unigram ? wn_unigram_encode : wn_merges_encode)(tok, text, bytes, dropped, ids, count);
}

__attribute__((format(printf, 3, 4))) static wn_status encode_fail(const struct encoder *e, wn_status status,
                                                                   const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (e->why) wn_print_list(e->why->text, sizeof e->why->text, format, args);
  va_end(args);
  return status;
}

/* What comes before a stretch of text: nothing, a space that becomes a token's, or text that was encoded already (a
 * newline takes its place, whose ids are dropped). */
enum before { BEFORE_NOTHING, BEFORE_SPACE, BEFORE_TEXT };

/* One stretch of text without U+2581, at the beginning of a document or after a newline or a byte token. */
static wn_status encode_stretch(struct encoder *e, const char *text, size_t bytes, enum before before,
                                struct wn_ids *ids) {
  if (bytes == 0) return WN_OK;
  size_t dropped = 0;
  if (before != BEFORE_NOTHING) {
    WN_TRY(WN_GROW(NULL, "text", &e->line, 0, bytes + 1, &e->line_capacity));
    e->line[0] = before == BEFORE_SPACE ? ' ' : '\n';
    memcpy(e->line + 1, text, bytes);
    text = e->line;
    bytes++;
    dropped = before == BEFORE_SPACE ? 0 : e->tok->prefix;
  }
  size_t count = 0;
  WN_TRY(wn_tokenizer_segment(e->tok, text, bytes, dropped, ids, &count));
  if (count >= dropped) return WN_OK;
  return encode_fail(e, WN_ERR_FORMAT, "the tokenizer's newline is not a token of its own everywhere");
}

/* Text without U+2581, cut at newlines into pieces of about PIECE_BYTES. */
static wn_status encode_lines(struct encoder *e, const char *text, size_t bytes, enum before before,
                              struct wn_ids *ids) {
  while (bytes > 0) {
    size_t n = bytes;
    if (bytes > PIECE_BYTES && e->tok->cuttable) {
      const char *newline = memrchr(text, '\n', PIECE_BYTES);
      if (!newline) newline = memchr(text + PIECE_BYTES, '\n', bytes - PIECE_BYTES);
      if (newline) n = (size_t)(newline - text) + 1;
    }
    if (n > WHOLE_LIMIT)
      return encode_fail(e, WN_ERR_UNSUPPORTED, "%zu bytes without a place to cut are too long to encode (at most %zu)",
                         n, WHOLE_LIMIT);
    WN_TRY(encode_stretch(e, text, n, before, ids));
    before = BEFORE_TEXT;
    text += n;
    bytes -= n;
  }
  return WN_OK;
}

/* The space that a tokenizer.json puts before a part of a text, if the part does not begin with one. at_start: the part
 * begins the document. */
static enum before before_part(const wn_tokenizer *tok, const char *text, size_t bytes, bool at_start) {
  const enum wn_prepend prepend = tok->info.foreign.prepend;
  const bool spaced = (bytes > 0 && *text == ' ') || wn_begins_with_mark(text, bytes);
  if (spaced || prepend == WN_PREPEND_NEVER || (prepend == WN_PREPEND_FIRST && !at_start)) return BEFORE_NOTHING;
  return BEFORE_SPACE;
}

static wn_status encode_text(struct encoder *e, const char *text, size_t bytes, enum before before,
                             struct wn_ids *ids) {
  const int32_t *byte_id = e->tok->byte_id;
  const int32_t mark[3] = {byte_id[0xE2], byte_id[0x96], byte_id[0x81]};
  bool has_mark = e->tok->cuttable && mark[0] >= 0 && mark[1] >= 0 && mark[2] >= 0 && !e->tok->info.foreign.marked;
  const char *found;
  while (has_mark && (found = memmem(text, bytes, WN_SPACE_MARK, 3))) {
    size_t n = (size_t)(found - text);
    WN_TRY(encode_lines(e, text, n, before, ids));
    WN_TRY(wn_ids_add(NULL, ids, mark, 3));
    before = BEFORE_TEXT;
    text += n + 3;
    bytes -= n + 3;
  }
  return encode_lines(e, text, bytes, before, ids);
}

/* A part of a text; first: the text begins the document. After a token that was found, a part counts as the beginning
 * of a text, as in llama.cpp. */
static wn_status encode_part(struct encoder *e, const char *text, size_t from, size_t end, bool first,
                             struct wn_ids *ids) {
  const enum before before =
      from == 0 && !first ? BEFORE_TEXT : before_part(e->tok, text + from, end - from, from == 0);
  return encode_text(e, text + from, end - from, before, ids);
}

/* Special tokens inside the spans, and the text between them. */
static wn_status encode_spm(const wn_tokenizer *tok, const char *text, size_t bytes, const struct wn_span *spans,
                            int count, bool first, struct wn_ids *ids, struct wn_encode_detail *why) {
  struct encoder e = {.tok = tok, .why = why};
  wn_status status = WN_OK;
  const struct wn_finder_text in = {.text = text, .bytes = bytes, .special = spans, .special_count = count};
  struct wn_finder_walk walk = {0};
  struct wn_found next;
  size_t done = 0;
  bool found = false;
  wn_finder_begin(&walk, &tok->finder, &in);
  for (;;) {
    if (status == WN_OK) status = wn_finder_next(&walk, done, &found, &next);
    if (status != WN_OK || !found) break;
    if (next.at.begin > done) status = encode_part(&e, text, done, next.at.begin, first, ids);
    if (status == WN_OK) status = wn_ids_add(NULL, ids, &next.id, 1);
    done = next.at.end;
  }
  if (status == WN_OK) status = encode_part(&e, text, done, bytes, first, ids);
  wn_bytes_clear(&walk.matches);
  wn_free(e.line);
  return status;
}

/* Each byte outside of valid UTF-8 is read as U+FFFD. */
static wn_status encode_bpe(const wn_tokenizer *tok, const char *text, size_t bytes, const struct wn_span *spans,
                            int count, bool first, struct wn_ids *ids, struct wn_encode_detail *why) {
  size_t bad;
  if (wn_utf8_check(text, bytes, &bad)) return wn_bpe_encode(tok->bpe, text, bytes, spans, count, first, ids, why);
  struct wn_bytes valid = {0};
  wn_status status = wn_utf8_replace_bad(text, bytes, &valid); /* a text with spans is already valid */
  if (status == WN_OK) status = wn_bpe_encode(tok->bpe, valid.data, valid.count, NULL, 0, first, ids, why);
  wn_bytes_clear(&valid);
  return status;
}

wn_status wn_tokenizer_encode_piece(const wn_tokenizer *tok, const char *text, size_t bytes, bool first,
                                    struct wn_ids *ids, struct wn_encode_detail *why) {
  if (why) why->text[0] = 0;
  if (!tok->spm && !tok->bpe) {
    int32_t block[1024];
    for (size_t at = 0; at < bytes;) {
      size_t n = 0;
      while (n < 1024 && at < bytes) block[n++] = (unsigned char)text[at++];
      WN_TRY(wn_ids_add(NULL, ids, block, n));
    }
    return WN_OK;
  }
  if (tok->bpe) return encode_bpe(tok, text, bytes, NULL, 0, first, ids, why);
  return encode_spm(tok, text, bytes, NULL, 0, first, ids, why);
}

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

size_t wn_tokenizer_cut(const wn_tokenizer *tok, const char *text, size_t bytes) {
  if (tok->bpe) { /* before a newline that follows a letter: a word ends there, and no pattern looks back */
    for (size_t i = bytes; tok->bpe->cuttable && i-- > 1;)
      if (text[i] == '\n' && is_letter(text[i - 1])) return i;
    return 0;
  }
  if (!tok->spm) return bytes;
  const char *newline = tok->cuttable && bytes ? memrchr(text, '\n', bytes) : NULL;
  return newline ? (size_t)(newline - text) + 1 : 0;
}

/* Joins all parts to one text, with the spans in which special tokens are recognised. */
static wn_status join(wn_context *ctx, const wn_tokenizer *tok, const wn_text_part *parts, int count,
                      struct wn_bytes *text, struct wn_span *spans, int *span_count) {
  *span_count = 0;
  for (int i = 0; i < count; i++) {
    size_t begin = text->count;
    if (tok->bpe) {
      WN_TRY(wn_utf8_replace_bad(parts[i].text, parts[i].bytes, text));
    } else {
      WN_TRY(wn_bytes_add(ctx, text, parts[i].text, parts[i].bytes));
    }
    if (parts[i].special) spans[(*span_count)++] = (struct wn_span){begin, text->count};
  }
  return wn_bytes_add(ctx, text, "", 0);
}

static wn_status encode_joined(wn_context *ctx, const wn_tokenizer *tok, const wn_text_part *parts, int count,
                               struct wn_ids *ids, struct wn_encode_detail *why) {
  struct wn_bytes text = {0};
  int span_count = 0;
  struct wn_span *spans;
  WN_TRY(WN_ALLOC(ctx, "text", count, &spans));
  wn_status status = join(ctx, tok, parts, count, &text, spans, &span_count);
  if (status == WN_OK) {
    if (tok->bpe)
      status = encode_bpe(tok, text.data, text.count, spans, span_count, true, ids, why);
    else if (tok->spm)
      status = encode_spm(tok, text.data, text.count, spans, span_count, true, ids, why);
    else
      status = wn_tokenizer_encode_piece(tok, text.data, text.count, true, ids, why);
  }
  wn_bytes_clear(&text);
  wn_free(spans);
  return status;
}

wn_status wn_tokenizer_encode_parts(wn_context *ctx, const wn_tokenizer *tok, const wn_text_part *parts, int part_count,
                                    bool add_bos, bool add_eos, int32_t **out, size_t *count) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_ARRAY(parts, part_count), WN_POINTER_AS("ids", out), WN_POINTER(count));
  *out = NULL;
  *count = 0;
  size_t bad, bytes = 0;
  if (part_count < 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "%d parts of a text", part_count);
  for (int i = 0; i < part_count; i++) {
    if (tok->spm && !wn_utf8_check(parts[i].text, parts[i].bytes, &bad))
      return wn_fail(ctx, WN_ERR_FORMAT, "the text is not UTF-8 at byte %zu (0x%02x)", bad,
                     (unsigned char)parts[i].text[bad]);
    if (!wn_add_size(bytes, parts[i].bytes, &bytes)) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: text");
  }
  if (add_bos && tok->bos < 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "the tokenizer has no token that begins a text");
  if (add_eos && tok->eos < 0) return wn_fail(ctx, WN_ERR_ARGUMENT, "the tokenizer has no token that ends a text");
  struct wn_ids ids = {0};
  struct wn_encode_detail why = {{0}};
  /* never NULL, so that an empty list is no failure */
  wn_status status = WN_GROW(ctx, "tokens", &ids.data, 0, bytes / 4 + 2, &ids.capacity);
  if (status == WN_OK && add_bos) status = wn_ids_add(ctx, &ids, &tok->bos, 1);
  if (status == WN_OK && part_count > 0) {
    if (part_count == 1 && !parts[0].special)
      status = wn_tokenizer_encode_piece(tok, parts[0].text, parts[0].bytes, true, &ids, &why);
    else
      status = encode_joined(ctx, tok, parts, part_count, &ids, &why);
    if (status != WN_OK)
      wn_fail(ctx, status, "the text cannot be encoded: %s", why.text[0] ? why.text : "out of memory");
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

wn_status wn_tokenizer_encode(wn_context *ctx, const wn_tokenizer *tok, const char *text, size_t bytes, bool add_bos,
                              bool add_eos, int32_t **out, size_t *count) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_ARRAY(text, bytes), WN_POINTER_AS("ids", out), WN_POINTER(count));
  const wn_text_part whole = {text, bytes, false};
  return wn_tokenizer_encode_parts(ctx, tok, &whole, 1, add_bos, add_eos, out, count);
}

/* --- decoding --- */

struct decoder {
  bool at_start;   /* the space before the text may still come */
  bool apart;      /* a token by itself: its bytes as they are, be they part of a character */
  char pending[4]; /* the beginning of an incomplete UTF-8 sequence */
  int pending_count;
};

/* Filters bytes: complete UTF-8 sequences are written; a byte that cannot be part of one becomes U+FFFD. */
static wn_status filter(wn_context *ctx, struct decoder *d, const char *more, size_t n, struct wn_bytes *out) {
  size_t bad;
  if (d->apart || (d->pending_count == 0 && wn_utf8_check(more, n, &bad))) return wn_bytes_add(ctx, out, more, n);
  for (size_t i = 0; i < n; i++) {
    d->pending[d->pending_count++] = more[i];
    while (d->pending_count > 0) {
      int length = wn_utf8_sequence(d->pending, (size_t)d->pending_count);
      if (length < 0) break;
      if (length == 0)
        WN_TRY(wn_bytes_add(ctx, out, "\xEF\xBF\xBD", 3));
      else
        WN_TRY(wn_bytes_add(ctx, out, d->pending, (size_t)length));
      int gone = length ? length : 1;
      memmove(d->pending, d->pending + gone, (size_t)(d->pending_count - gone));
      d->pending_count -= gone;
    }
  }
  return WN_OK;
}

static unsigned hex_digit(char c) {
  return c >= '0' && c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'A' + 10);
}

static enum wn_strip decode_strip(const wn_tokenizer *tok) {
  if (tok->bpe) return tok->bpe->strip;
  if (tok->info.foreign.marked) return tok->info.foreign.strip;
  return tok->info.add_dummy_prefix || tok->info.remove_extra_whitespaces ? WN_STRIP_SPACE : WN_STRIP_NONE;
}

/* A token's text, in which U+2581 may mean a space, or which contains spaces. */
static wn_status decode_text_piece(wn_context *ctx, const wn_tokenizer *tok, struct decoder *d, const char *text,
                                   size_t n, struct wn_bytes *out) {
  const enum wn_strip how = decode_strip(tok);
  const bool strip = d->at_start && how != WN_STRIP_NONE, fewer = !tok->bpe && tok->info.remove_extra_whitespaces;
  const bool marks = !tok->bpe || tok->bpe->marks;
  if (strip && marks && wn_begins_with_mark(text, n)) {
    text += 3;
    n -= 3;
    if (fewer && n == 0) return WN_OK; /* the space may be a token of its own */
  } else if (strip && tok->bpe && how == WN_STRIP_SPACE && n >= 1 &&
             *text == ' ') { /* pieces that contain spaces themselves */
    text++, n--;
  }
  d->at_start = fewer && n == 0 && d->at_start;
  while (n > 0) {
    const char *mark = marks ? memmem(text, n, WN_SPACE_MARK, 3) : NULL;
    const size_t plain = mark ? (size_t)(mark - text) : n;
    if (plain) WN_TRY(filter(ctx, d, text, plain, out));
    if (mark && !(strip && how == WN_STRIP_MARKS)) WN_TRY(filter(ctx, d, " ", 1, out));
    text += plain + (mark ? 3 : 0);
    n -= plain + (mark ? 3 : 0);
  }
  return WN_OK;
}

/* A token that stands for a byte. */
static wn_status decode_byte(wn_context *ctx, const wn_tokenizer *tok, struct decoder *d, unsigned byte,
                             struct wn_bytes *out) {
  const char c = (char)(unsigned char)byte;
  const bool foreign = tok->bpe || tok->info.foreign.marked;
  const bool dropped = d->at_start && c == ' ' && foreign && decode_strip(tok) == WN_STRIP_SPACE;
  d->at_start = false;
  return dropped ? WN_OK : filter(ctx, d, &c, 1, out);
}

static wn_status decode_bpe(wn_context *ctx, const wn_tokenizer *tok, struct decoder *d, int32_t id,
                            struct wn_bytes *out) {
  const struct wn_bpe *bpe = tok->bpe;
  const struct wn_token *t = &bpe->vocab.tokens[id];
  const char *text = wn_vocab_text(&bpe->vocab, id);
  if (t->kind == WN_TOKEN_NONE || t->kind == WN_TOKEN_SPECIAL) return WN_OK;
  if (t->kind == WN_TOKEN_BYTE) {
    unsigned byte = 0;
    for (uint32_t i = 3; i < 5 && t->bytes == 6; i++) byte = byte * 16 + hex_digit(text[i]);
    return decode_byte(ctx, tok, d, byte, out);
  }
  if (t->kind == WN_TOKEN_ADDED && t->normalized && bpe->normalize_count > 0) { /* with the space that it took in */
    struct wn_bytes normal = {0};
    wn_status status = wn_bpe_normalize(bpe, text, t->bytes, &normal);
    if (status == WN_OK && bpe->byte_level) status = filter(ctx, d, normal.data, normal.count, out);
    if (status == WN_OK && !bpe->byte_level) status = decode_text_piece(ctx, tok, d, normal.data, normal.count, out);
    wn_bytes_clear(&normal);
    return status;
  }
  if (!bpe->byte_level) return decode_text_piece(ctx, tok, d, text, t->bytes, out);
  return filter(ctx, d, text, t->bytes, out);
}

static wn_status decode_piece(wn_context *ctx, const wn_tokenizer *tok, struct decoder *d, int32_t id, bool raw,
                              struct wn_bytes *out) {
  if (id < 0 || id >= tok->vocab_size)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "token %d is outside the tokenizer's vocabulary of %d", id, tok->vocab_size);
  if (tok->bpe) return decode_bpe(ctx, tok, d, id, out);
  if (!tok->spm) {
    char byte = (char)(unsigned char)id;
    return raw ? wn_bytes_add(ctx, out, &byte, 1) : filter(ctx, d, &byte, 1, out);
  }
  const char *text;
  size_t n;
  switch (wn_spm_piece(tok->spm, id, &text, &n)) {
  case WN_SPM_CONTROL:
    return WN_OK;
  case WN_SPM_UNKNOWN:
    if (tok->info.unk_surface[0]) d->at_start = false;
    return filter(ctx, d, tok->info.unk_surface, strlen(tok->info.unk_surface), out);
  case WN_SPM_BYTE: {
    unsigned byte = 0;
    for (unsigned i = 0; i < 256; i++)
      if (tok->byte_id[i] == id) byte = i;
    return decode_byte(ctx, tok, d, byte, out);
  }
  case WN_SPM_TEXT:
    break;
  }
  return decode_text_piece(ctx, tok, d, text, n, out);
}

wn_status wn_tokenizer_decode(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count, char **text,
                              size_t *bytes) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_ARRAY(ids, count), WN_POINTER(text), WN_POINTER(bytes));
  *text = NULL;
  *bytes = 0;
  struct decoder d = {.at_start = true};
  struct wn_bytes out = {0};
  wn_status status = wn_bytes_add(ctx, &out, "", 0);
  for (size_t i = 0; i < count && status == WN_OK; i++) status = decode_piece(ctx, tok, &d, ids[i], true, &out);
  /* an incomplete sequence at the end */
  for (int i = 0; i < d.pending_count && status == WN_OK; i++) status = wn_bytes_add(ctx, &out, "\xEF\xBF\xBD", 3);
  if (status != WN_OK) {
    wn_free(out.data);
    return status;
  }
  *text = out.data;
  *bytes = out.count;
  return WN_OK;
}

wn_status wn_tokenizer_token_bytes(wn_context *ctx, const wn_tokenizer *tok, int32_t id, bool begins, char **text,
                                   size_t *bytes) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_POINTER(text), WN_POINTER(bytes));
  struct decoder d = {.at_start = begins, .apart = true};
  struct wn_bytes out = {0};
  *text = NULL;
  *bytes = 0;
  wn_status status = wn_bytes_add(ctx, &out, "", 0);
  if (status == WN_OK) status = decode_piece(ctx, tok, &d, id, true, &out);
  if (status != WN_OK) {
    wn_bytes_clear(&out);
    return status;
  }
  *text = out.data;
  *bytes = out.count;
  return WN_OK;
}

struct wn_text_stream {
  const wn_tokenizer *tok;
  struct decoder decoder;
  struct wn_bytes out;
};

wn_status wn_text_stream_create(wn_context *ctx, const wn_tokenizer *tok, wn_text_stream **out) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_POINTER(out));
  *out = NULL;
  wn_text_stream *s;
  WN_TRY(WN_ALLOC(ctx, "text stream", 1, &s));
  wn_handle_mark(s, WN_HANDLE_TEXT_STREAM);
  s->tok = tok;
  s->decoder.at_start = true;
  wn_status status = wn_bytes_add(ctx, &s->out, "", 0);
  if (status != WN_OK) {
    wn_text_stream_destroy(s);
    return status;
  }
  *out = s;
  return WN_OK;
}
void wn_text_stream_destroy(wn_text_stream *s) {
  WN_CHECK_OR(, WN_HANDLE(s, TEXT_STREAM));
  wn_free(s->out.data);
  wn_free(s);
}
wn_status wn_text_stream_push(wn_context *ctx, wn_text_stream *s, int32_t id, const char **text, size_t *bytes) {
  WN_CHECK_CALL(WN_HANDLE(s, TEXT_STREAM), WN_POINTER(text), WN_POINTER(bytes));
  s->out.count = 0;
  s->out.data[0] = 0;
  *text = s->out.data;
  *bytes = 0;
  WN_TRY(decode_piece(ctx, s->tok, &s->decoder, id, false, &s->out));
  *text = s->out.data;
  *bytes = s->out.count;
  return WN_OK;
}

bool wn_tokenizer_is_end(const wn_tokenizer *tok, int32_t id) {
  WN_CHECK_OR(false, WN_HANDLE(tok, TOKENIZER));
  for (int i = 0; i < tok->end_count; i++)
    if (tok->ends[i] == id) return true;
  return false;
}
