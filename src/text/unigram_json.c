/* Reads a tokenizer.json whose model is Unigram and converts it to a SentencePiece model. Accepted are files that leave
 * the text unchanged except for its spaces: spaces become U+2581 (normalizers Prepend and Replace, or the pre-tokenizer
 * Metaspace) or stay spaces (wn_spm_write_json). What SentencePiece does not do with spaces stands in a field of the
 * model that only winnow reads (struct wn_spm_foreign). Normalisation tables (Precompiled, NFKC, ...) and everything
 * else are refused by name. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "text/bpe_json.h"
#include "text/spm_json.h"
#include "text/spm_proto.h"
#include "text/utf8.h"

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */

struct unigram_reader {
  wn_context *ctx;
  const char *name;
  const json_t *vocab, *added;
  bool byte_fallback;
  bool spaces, marks, prefix; /* pieces contain spaces; spaces become U+2581; a text gets one in front */
  bool normalized;            /* a normalizer changes texts */
  bool metaspace;             /* spaces are the pre-tokenizer's work */
  struct wn_spm_foreign foreign;
};

static wn_status unigram_json_unknown(const struct unigram_reader *r, const char *where, const char *what) {
  return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: %s \"%.60s\" of a Unigram model cannot be read here", r->name, where,
                 what ? what : "null");
}
static wn_status unigram_json_wrong(const struct unigram_reader *r, const char *where, const char *expected) {
  return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: %s is not %s", r->name, where, expected);
}

bool wn_unigram_json_is(const json_t *root) {
  const char *type = json_string_value(json_object_get(json_object_get(root, "model"), "type"));
  return type && !strcmp(type, "Unigram");
}

static const char *unigram_json_text(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

/* Reads the steps of one of the three lists in turn; a single step counts as a list of one. */
static wn_status unigram_json_steps(struct unigram_reader *r, const json_t *root, const char *where, const char *list,
                                    wn_status (*step)(struct unigram_reader *r, const json_t *object,
                                                      const char *type)) {
  const json_t *object = json_object_get(root, where);
  if (!object || json_is_null(object)) return WN_OK;
  const json_t *steps = json_object_get(object, list);
  if (strcmp(unigram_json_text(object, "type"), "Sequence") != 0)
    return step(r, object, unigram_json_text(object, "type"));
  if (!json_is_array(steps)) return unigram_json_wrong(r, where, "a sequence");
  for (size_t i = 0; i < json_array_size(steps); i++)
    WN_TRY(step(r, json_array_get(steps, i), unigram_json_text(json_array_get(steps, i), "type")));
  return WN_OK;
}

/* Is the text one character that is not a piece? */
static bool unigram_json_is_foreign(const struct unigram_reader *r, const char *text) {
  const size_t bytes = strlen(text);
  if (bytes == 0 || wn_utf8_sequence(text, bytes) != (int)bytes) return false;
  for (size_t i = 0; i < json_array_size(r->vocab); i++)
    if (!strcmp(text, json_string_value(json_array_get(json_array_get(r->vocab, i), 0)))) return false;
  return true;
}

static wn_status unigram_json_normalizer(struct unigram_reader *r, const json_t *object, const char *type) {
  const char *prepend = unigram_json_text(object, "prepend"), *content = unigram_json_text(object, "content");
  const char *from = unigram_json_text(json_object_get(object, "pattern"), "String");
  static const char begin[] = WN_SPM_JSON_BEGIN, begin_mark[] = WN_SPM_JSON_BEGIN "\xE2\x96\x81";
  r->normalized = true;
  if (!strcmp(type, "Prepend") && !(r->marks && !strcmp(prepend, " ")) &&
      (!strcmp(prepend, " ") || !strcmp(prepend, space_mark) || !strcmp(prepend, begin))) {
    r->prefix = true;
    return WN_OK;
  }
  if (!strcmp(type, "Replace") &&
      ((!strcmp(from, begin) && !strcmp(content, " ")) || (!strcmp(from, begin_mark) && !strcmp(content, space_mark))))
    return WN_OK;
  if (!strcmp(type, "Replace") && !strcmp(from, " ") && !strcmp(content, space_mark)) {
    r->marks = true;
    return WN_OK;
  }
  if (!strcmp(type, "Replace") && !strcmp(from, space_mark) && !strcmp(content, " ")) {
    r->foreign.marked = r->byte_fallback; /* without, a U+2581 is a space in any case */
    return WN_OK;
  }
  /* Replaces one unknown character by another: both become the unknown token. */
  if (!strcmp(type, "Replace") && !r->byte_fallback && !strcmp(content, WN_SPM_JSON_UNKNOWN) &&
      unigram_json_is_foreign(r, from) && unigram_json_is_foreign(r, content))
    return WN_OK;
  return unigram_json_unknown(r, "normalizer", type);
}

/* A split at a character that no piece contains changes nothing. */
static wn_status unigram_json_split(struct unigram_reader *r, const json_t *object, const char *type) {
  const char *text = unigram_json_text(json_object_get(object, "pattern"), "String");
  if (!unigram_json_is_foreign(r, text) || strcmp(unigram_json_text(object, "behavior"), "Isolated") != 0)
    return unigram_json_unknown(r, "pre_tokenizer", type);
  return WN_OK;
}

/* Does a piece have a U+2581 behind its first character, or is U+2581 no piece? Then a split at spaces changes tokens.
 */
static bool unigram_json_split_matters(const struct unigram_reader *r) {
  bool alone = false;
  for (size_t i = 0; i < json_array_size(r->vocab); i++) {
    const char *text = json_string_value(json_array_get(json_array_get(r->vocab, i), 0));
    alone |= !strcmp(text, space_mark);
    if (strstr(text + 1, space_mark)) return true;
  }
  return !alone;
}

static wn_status unigram_json_pre_tokenizer(struct unigram_reader *r, const json_t *object, const char *type) {
  enum wn_prepend prepend;
  const char *replacement = unigram_json_text(object, "replacement");
  if (!strcmp(type, "Split")) return unigram_json_split(r, object, type);
  if (strcmp(type, "Metaspace") != 0) return unigram_json_unknown(r, "pre_tokenizer", type);
  if (r->prefix || r->metaspace) return unigram_json_unknown(r, "a space twice before texts, once by", type);
  WN_TRY(wn_bpe_json_scheme(r->ctx, r->name, object, &prepend));
  if (!json_is_false(json_object_get(object, "split")) && unigram_json_split_matters(r))
    return unigram_json_unknown(r, "pre_tokenizer", "Metaspace split");
  if (strcmp(replacement, " ") != 0) r->marks = true;
  r->metaspace = true;
  r->foreign.prepend = (uint8_t)prepend;
  return WN_OK;
}

/* What the added tokens say of the pieces [vocab]; 0: nothing. */
static wn_status unigram_json_added(const struct unigram_reader *r, uint8_t **out) {
  WN_TRY(WN_ALLOC(r->ctx, "types of pieces", json_array_size(r->vocab), out));
  for (size_t i = json_array_size(r->added); i-- > 0;) { /* of several entries for one piece the first counts */
    const json_t *token = json_array_get(r->added, i);
    (*out)[json_integer_value(json_object_get(token, "id"))] =
        json_is_true(json_object_get(token, "special")) ? WN_PIECE_CONTROL : WN_PIECE_USER_DEFINED;
  }
  return WN_OK;
}

/* Is it of the form "<0x41>"? */
static bool unigram_json_is_byte(const char *text) {
  return strlen(text) == 6 && !strncmp(text, "<0x", 3) && isxdigit((unsigned char)text[3]) &&
         isxdigit((unsigned char)text[4]) && text[5] == '>';
}

/* A piece as SentencePiece writes it, with U+2581 for spaces. */
static wn_status unigram_json_marked(const struct unigram_reader *r, const char *text, struct wn_bytes *out) {
  out->count = 0;
  while (r->spaces && *text) {
    const size_t n = strcspn(text, " ");
    WN_TRY(wn_bytes_add(r->ctx, out, text, n));
    if (text[n]) WN_TRY(wn_bytes_add(r->ctx, out, space_mark, 3));
    text += n + (text[n] != 0);
  }
  return wn_bytes_add(r->ctx, out, text, strlen(text));
}

static wn_status unigram_json_check_vocab(struct unigram_reader *r) {
  const size_t size = json_array_size(r->vocab);
  bool marks = false;
  if (size == 0 || size > WN_LIMIT_VOCABULARY) return unigram_json_wrong(r, "model.vocab", "a list of pieces");
  for (size_t i = 0; i < size; i++) {
    const json_t *piece = json_array_get(r->vocab, i), *score = json_array_get(piece, 1);
    const char *text = json_string_value(json_array_get(piece, 0));
    if (!text || !*text || !json_is_number(score) || !isfinite((float)json_number_value(score)))
      return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: model.vocab[%zu] is not a text with a score", r->name, i);
    r->spaces |= strchr(text, ' ') != NULL;
    marks |= strstr(text, space_mark) != NULL;
  }
  for (size_t i = 0; i < json_array_size(r->added); i++) {
    const json_t *id = json_object_get(json_array_get(r->added, i), "id");
    const json_t *token = json_array_get(r->added, i);
    const char *content = unigram_json_text(token, "content");
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)size ||
        strcmp(content,
               json_string_value(json_array_get(json_array_get(r->vocab, (size_t)json_integer_value(id)), 0))) != 0)
      return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: added_tokens[%zu] is not a piece of model.vocab", r->name, i);
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
      if (json_is_true(json_object_get(token, flags[k])))
        return unigram_json_unknown(r, "an added token with", flags[k]);
  }
  return marks && r->spaces ? unigram_json_unknown(r, "model with", "spaces and U+2581 in its pieces") : WN_OK;
}

static wn_status unigram_json_pieces(struct unigram_reader *r, const uint8_t *added, json_int_t unknown,
                                     struct wn_bytes *model, struct wn_bytes *part, struct wn_bytes *text) {
  for (size_t i = 0; i < json_array_size(r->vocab); i++) {
    const json_t *piece = json_array_get(r->vocab, i);
    const char *given = json_string_value(json_array_get(piece, 0));
    int type = added[i];
    if ((json_int_t)i == unknown) type = WN_PIECE_UNKNOWN;
    if (!type && r->byte_fallback && unigram_json_is_byte(given)) type = WN_PIECE_BYTE;
    if (!type) type = WN_PIECE_NORMAL;
    WN_TRY(unigram_json_marked(r, given, text));
    const double score = type == WN_PIECE_NORMAL ? json_number_value(json_array_get(piece, 1)) : 0;
    WN_TRY(wn_proto_piece(r->ctx, model, part, text->data, text->count, score, type));
  }
  return WN_OK;
}

/* Added tokens that are looked for in normalised texts must be the same there. */
static wn_status unigram_json_check_added(const struct unigram_reader *r) {
  for (size_t i = 0; r->normalized && i < json_array_size(r->added); i++) {
    const json_t *token = json_array_get(r->added, i), *flag = json_object_get(token, "normalized");
    const bool normalized = flag ? json_is_true(flag) : !json_is_true(json_object_get(token, "special"));
    const char *content = unigram_json_text(token, "content");
    if (normalized && (r->prefix || strchr(content, ' ') || strstr(content, space_mark)))
      return unigram_json_unknown(r, "an added token that normalizers change:", content);
  }
  return WN_OK;
}

/* The token that the template puts before a text. */
static wn_status unigram_json_template(const struct unigram_reader *r, const json_t *object, int32_t *bos) {
  *bos = -1;
  if (!object || json_is_null(object)) return WN_OK;
  if (strcmp(unigram_json_text(object, "type"), "TemplateProcessing") != 0)
    return unigram_json_unknown(r, "post_processor", unigram_json_text(object, "type"));
  const json_t *single = json_object_get(object, "single");
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
    const char *name = json_string_value(json_object_get(special, "id"));
    if (!special) return i + 1 == json_array_size(single) ? WN_OK : unigram_json_unknown(r, "post_processor", "an end");
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(object, "special_tokens"), name ? name : ""), "ids");
    const json_int_t id = json_array_size(ids) == 1 ? json_integer_value(json_array_get(ids, 0)) : -1;
    if (id < 0 || id >= (json_int_t)json_array_size(r->vocab) || *bos >= 0)
      return unigram_json_unknown(r, "post_processor", name);
    *bos = (int32_t)id;
  }
  return WN_OK;
}

static wn_status unigram_json_read(struct unigram_reader *r, const json_t *root, struct wn_bytes *model,
                                   struct wn_bytes *part, struct wn_bytes *text, int32_t *bos) {
  const json_t *own = json_object_get(root, "model"), *unknown = json_object_get(own, "unk_id");
  r->byte_fallback = json_is_true(json_object_get(own, "byte_fallback"));
  WN_TRY(unigram_json_check_vocab(r));
  WN_TRY(unigram_json_steps(r, root, "normalizer", "normalizers", unigram_json_normalizer));
  WN_TRY(unigram_json_steps(r, root, "pre_tokenizer", "pretokenizers", unigram_json_pre_tokenizer));
  struct wn_decoder_rules rules;
  WN_TRY(wn_bpe_json_decoder(r->ctx, r->name, json_object_get(root, "decoder"), true, &rules));
  if (r->byte_fallback && !rules.bytes)
    return unigram_json_unknown(r, "model with byte_fallback and", "a decoder without ByteFallback");
  if (r->marks && !rules.marks) return unigram_json_unknown(r, "model with U+2581 for spaces and", "a decoder without");
  r->foreign.strip = (uint8_t)rules.strip;
  /* Files of wn_spm_write_json are SentencePiece models as they were. */
  r->foreign.marked |= r->marks || r->metaspace;
  if (!r->foreign.marked) r->foreign = (struct wn_spm_foreign){0};
  if (!r->spaces && !r->marks) return unigram_json_unknown(r, "model without", "spaces");
  WN_TRY(unigram_json_check_added(r));
  if (r->spaces && r->marks) return unigram_json_unknown(r, "model with spaces in its pieces and", "U+2581 in texts");
  const json_int_t id = json_integer_value(unknown);
  if (!json_is_integer(unknown) || id < 0 || id >= (json_int_t)json_array_size(r->vocab))
    return unigram_json_wrong(r, "model.unk_id", "the number of a piece");
  WN_TRY(unigram_json_template(r, json_object_get(root, "post_processor"), bos));
  uint8_t *added;
  WN_TRY(unigram_json_added(r, &added));
  const wn_status status = unigram_json_pieces(r, added, id, model, part, text);
  wn_free(added);
  WN_TRY(status);
  /* Special tokens have no text; any other unknown token has its own. */
  const char *surface = json_string_value(json_array_get(json_array_get(r->vocab, (size_t)id), 0));
  for (size_t i = 0; i < json_array_size(r->added); i++) {
    const json_t *token = json_array_get(r->added, i);
    if (json_integer_value(json_object_get(token, "id")) == id && json_is_true(json_object_get(token, "special")))
      surface = "";
  }
  struct wn_proto_specs specs = {.unigram = true,
                                 .byte_fallback = r->byte_fallback,
                                 .add_dummy_prefix = r->prefix,
                                 .foreign = r->foreign,
                                 .unknown = r->foreign.marked ? surface : NULL,
                                 .ids = {(int32_t)id, *bos, -1}};
  for (int i = 0; i < 2; i++) {
    if (specs.ids[i] < 0) continue;
    specs.texts[i] = json_string_value(json_array_get(json_array_get(r->vocab, (size_t)specs.ids[i]), 0));
    specs.bytes[i] = strlen(specs.texts[i]);
  }
  return wn_proto_put_specs(r->ctx, model, part, &specs);
}

wn_status wn_unigram_read_json(wn_context *ctx, const char *name, const json_t *root, struct wn_bytes *model,
                               int32_t *bos) {
  struct wn_bytes part = {0}, text = {0};
  struct unigram_reader r = {.ctx = ctx,
                             .name = name,
                             .vocab = json_object_get(json_object_get(root, "model"), "vocab"),
                             .added = json_object_get(root, "added_tokens")};
  const wn_status status = unigram_json_read(&r, root, model, &part, &text, bos);
  wn_bytes_clear(&part);
  wn_bytes_clear(&text);
  return status;
}
