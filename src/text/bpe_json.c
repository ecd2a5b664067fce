/* Reads a tokenizer.json (Hugging Face tokenizers) whose model is BPE. The format allows many things; those that
 * language models use are read (docs/tokenizers.md has the list), and all others are refused by name, because a
 * half-understood tokenizer would silently give wrong tokens. */
#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/text.h"
#include "text/bpe_json.h"

#define MAX_DEPTH 4 /* of nested sequences */

struct reader {
  wn_context *ctx;
  const char *name;
  struct wn_bpe *bpe;
  bool byte_level; /* a ByteLevel step was read: nothing may follow it */
  struct decoding *decoding;
  int32_t *bos, *eos;
};

static wn_status wrong(const struct reader *r, const char *where, const char *expected) {
  return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: %s is not %s", r->name, where, expected);
}
static wn_status unknown(const struct reader *r, const char *where, const char *what) {
  return wn_fail(r->ctx, WN_ERR_UNSUPPORTED, "%s: %s \"%.60s\" cannot be read here", r->name, where, what);
}

/* An optional bool. */
static wn_status get_bool(const struct reader *r, const json_t *object, const char *where, const char *key,
                          bool otherwise, bool *out) {
  const json_t *value = json_object_get(object, key);
  char place[128];
  *out = otherwise;
  if (!value || json_is_null(value)) return WN_OK;
  snprintf(place, sizeof place, "%s.%s", where, key);
  if (!json_is_boolean(value)) return wrong(r, place, "true or false");
  *out = json_is_true(value);
  return WN_OK;
}

/* An optional string without NULs (NULL: absent). */
static wn_status get_string(const struct reader *r, const json_t *object, const char *where, const char *key,
                            const char **out) {
  const json_t *value = json_object_get(object, key);
  char place[128];
  *out = NULL;
  if (!value || json_is_null(value)) return WN_OK;
  snprintf(place, sizeof place, "%s.%s", where, key);
  if (!json_is_string(value)) return wrong(r, place, "a string");
  *out = json_string_value(value);
  return WN_OK;
}

static wn_status get_type(const struct reader *r, const json_t *object, const char *where, const char **out) {
  if (!json_is_object(object)) return wrong(r, where, "an object");
  WN_TRY(get_string(r, object, where, "type", out));
  return *out ? WN_OK : wrong(r, where, "an object with a type");
}

/* Reads a step, or those of a Sequence, whose list is under `key`. */
static wn_status read_steps(struct reader *r, const json_t *object, const char *where, const char *key, int depth,
                            wn_status (*read)(struct reader *r, const json_t *step, const char *type)) {
  const char *type;
  if (!object || json_is_null(object)) return WN_OK;
  WN_TRY(get_type(r, object, where, &type));
  if (strcmp(type, "Sequence") != 0) return read(r, object, type);
  const json_t *list = json_object_get(object, key);
  if (!json_is_array(list) || depth == MAX_DEPTH) return wrong(r, where, "a sequence");
  for (size_t i = 0; i < json_array_size(list); i++)
    WN_TRY(read_steps(r, json_array_get(list, i), where, key, depth + 1, read));
  return WN_OK;
}

/* --- normalizer --- */

const char *const wn_bpe_json_forms[] = {[WN_NORMALIZE_NFC] = "NFC",
                                         [WN_NORMALIZE_NFD] = "NFD",
                                         [WN_NORMALIZE_NFKC] = "NFKC",
                                         [WN_NORMALIZE_NFKD] = "NFKD",
                                         NULL};

static wn_status read_normalizer(struct reader *r, const json_t *object, const char *type) {
  const char *text;
  if (r->bpe->normalize_count == WN_BPE_STEPS) return unknown(r, "more normalizers than twelve, among them", type);
  struct wn_normalize_step step = {0};
  int form = 0;
  while (wn_bpe_json_forms[form] && strcmp(type, wn_bpe_json_forms[form]) != 0) form++;
  if (wn_bpe_json_forms[form]) {
    step.kind = form;
  } else if (!strcmp(type, "Prepend")) {
    step.kind = WN_NORMALIZE_PREPEND;
    WN_TRY(get_string(r, object, "normalizer", "prepend", &text));
    if (!text) return wrong(r, "normalizer.prepend", "a string");
    if (!(step.to = wn_strdup(r->ctx, text))) return WN_ERR_MEMORY;
  } else if (!strcmp(type, "Replace")) {
    step.kind = WN_NORMALIZE_REPLACE;
    const char *from, *to;
    WN_TRY(get_string(r, json_object_get(object, "pattern"), "normalizer.pattern", "String", &from));
    WN_TRY(get_string(r, object, "normalizer", "content", &to));
    if (!from || !from[0]) return unknown(r, "normalizer", "Replace of a regular expression");
    if (!to) return wrong(r, "normalizer.content", "a string");
    step.from = wn_strdup(r->ctx, from);
    step.to = wn_strdup(r->ctx, to);
    if (!step.from || !step.to) {
      wn_free(step.from);
      wn_free(step.to);
      return WN_ERR_MEMORY;
    }
  } else {
    return unknown(r, "normalizer", type);
  }
  r->bpe->normalize[r->bpe->normalize_count++] = step;
  return WN_OK;
}

/* --- pre_tokenizer --- */

const char *const wn_bpe_json_behaviors[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                             "Contiguous"};

static wn_status read_behavior(const struct reader *r, const json_t *object, int *out) {
  const char *name;
  WN_TRY(get_string(r, object, "pre_tokenizer", "behavior", &name));
  *out = WN_SPLIT_ISOLATED;
  for (int i = 0; i < 5 && name; i++)
    if (!strcmp(name, wn_bpe_json_behaviors[i])) {
      *out = i;
      return WN_OK;
    }
  return name ? unknown(r, "pre_tokenizer.behavior", name) : WN_OK;
}

static wn_status add_step(struct reader *r, struct wn_split_step step) {
  if (r->bpe->split_count == WN_BPE_STEPS) return unknown(r, "more than twelve of", "pre_tokenizer");
  r->bpe->split[r->bpe->split_count++] = step;
  return WN_OK;
}

static wn_status read_split(struct reader *r, const json_t *object) {
  const json_t *pattern = json_object_get(object, "pattern");
  const char *regex, *string;
  bool invert;
  int behavior;
  WN_TRY(get_string(r, pattern, "pre_tokenizer.pattern", "Regex", &regex));
  WN_TRY(get_string(r, pattern, "pre_tokenizer.pattern", "String", &string));
  WN_TRY(get_bool(r, object, "pre_tokenizer", "invert", false, &invert));
  WN_TRY(read_behavior(r, object, &behavior));
  if (regex) return wn_bpe_add_split(r->ctx, r->name, r->bpe, regex, behavior, invert);
  if (!string || !string[0]) return wrong(r, "pre_tokenizer.pattern", "{\"Regex\": ...} or {\"String\": ...}");
  struct wn_text escaped = {0};
  for (const char *p = string; *p; p++) wn_text_add(&escaped, strchr("\\^$.|?*+()[]{}", *p) ? "\\%c" : "%c", *p);
  wn_status status = escaped.failed ? wn_fail(r->ctx, WN_ERR_MEMORY, "out of memory: a pattern")
                                    : wn_bpe_add_split(r->ctx, r->name, r->bpe, escaped.data, behavior, invert);
  wn_free(escaped.data);
  return status;
}

const char *const wn_bpe_json_schemes[WN_PREPENDS] = {
    [WN_PREPEND_NEVER] = "never", [WN_PREPEND_ALWAYS] = "always", [WN_PREPEND_FIRST] = "first"};

/* The character that stands for spaces, and what is put before a text. */
static wn_status read_scheme(const struct reader *r, const json_t *object, const char *where, bool spaces,
                             enum wn_prepend *out) {
  const char *replacement, *scheme;
  char place[64];
  bool prefix;
  WN_TRY(get_string(r, object, where, "replacement", &replacement));
  WN_TRY(get_string(r, object, where, "prepend_scheme", &scheme));
  WN_TRY(get_bool(r, object, where, "add_prefix_space", true, &prefix));
  const bool known = !replacement || !strcmp(replacement, WN_SPACE_MARK) || (spaces && !strcmp(replacement, " "));
  snprintf(place, sizeof place, "%s Metaspace with", where);
  if (!known) return unknown(r, place, replacement);
  *out = prefix ? WN_PREPEND_ALWAYS : WN_PREPEND_NEVER;
  int found = 0;
  while (scheme && found < WN_PREPENDS && strcmp(scheme, wn_bpe_json_schemes[found]) != 0) found++;
  if (scheme && found == WN_PREPENDS) return unknown(r, place, scheme);
  if (scheme) *out = (enum wn_prepend)found;
  return WN_OK;
}

wn_status wn_bpe_json_scheme(wn_context *ctx, const char *name, const json_t *object, enum wn_prepend *out) {
  return read_scheme(&(struct reader){.ctx = ctx, .name = name}, object, "pre_tokenizer", true, out);
}

static wn_status read_metaspace(struct reader *r, const json_t *object) {
  struct wn_split_step step = {.kind = WN_SPLIT_METASPACE};
  bool split;
  WN_TRY(read_scheme(r, object, "pre_tokenizer", false, &step.prepend));
  WN_TRY(get_bool(r, object, "pre_tokenizer", "split", true, &split));
  WN_TRY(add_step(r, step));
  return split ? wn_bpe_add_split(r->ctx, r->name, r->bpe, WN_SPACE_MARK, WN_SPLIT_WITH_NEXT, false) : WN_OK;
}

/* Punctuation as Hugging Face tokenizers has it: ASCII's symbols, and Unicode 8's categories with two characters more.
 * Later characters are none. */
static const char punctuation[] =
    "(?!["
    "\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B7D}-\\x{1B7E}\\x{2E43}-\\x{2E4F}\\x{2E52}-\\x{2E5D}"
    "\\x{10EAD}\\x{10F55}-\\x{10F59}\\x{10F86}-\\x{10F89}\\x{1144B}-\\x{1144F}\\x{1145A}-\\x{1145B}"
    "\\x{1145D}\\x{11660}-\\x{1166C}\\x{116B9}\\x{1183B}\\x{11944}-\\x{11946}\\x{119E2}\\x{11A3F}-\\x{11A46}"
    "\\x{11A9A}-\\x{11A9C}\\x{11A9E}-\\x{11AA2}\\x{11C41}-\\x{11C45}\\x{11C70}-\\x{11C71}\\x{11EF7}-\\x{11EF8}"
    "\\x{11FFF}\\x{12FF1}-\\x{12FF2}\\x{16E97}-\\x{16E9A}\\x{16FE2}\\x{1E95E}-\\x{1E95F}\\x{11B00}-\\x{11B09}"
    "\\x{11F43}-\\x{11F4F}"
    "])[!-\\/:-@\\[-`{-~\\p{P}\\x{166D}\\x{111C9}]";

static wn_status read_pre_tokenizer(struct reader *r, const json_t *object, const char *type) {
  bool flag;
  int behavior;
  if (r->byte_level) return unknown(r, "after ByteLevel, the pre_tokenizer", type);
  if (!strcmp(type, "ByteLevel")) {
    r->byte_level = true;
    WN_TRY(get_bool(r, object, "pre_tokenizer", "add_prefix_space", true, &flag));
    if (flag) WN_TRY(add_step(r, (struct wn_split_step){.kind = WN_SPLIT_PREFIX_SPACE}));
    WN_TRY(get_bool(r, object, "pre_tokenizer", "use_regex", true, &flag));
    return flag ? wn_bpe_add_split(r->ctx, r->name, r->bpe, wn_gpt2_pattern, WN_SPLIT_ISOLATED, false) : WN_OK;
  }
  if (!strcmp(type, "Split")) return read_split(r, object);
  if (!strcmp(type, "Metaspace")) return read_metaspace(r, object);
  if (!strcmp(type, "Digits")) {
    WN_TRY(get_bool(r, object, "pre_tokenizer", "individual_digits", false, &flag));
    return wn_bpe_add_split(r->ctx, r->name, r->bpe, flag ? "\\p{N}" : "\\p{N}+", WN_SPLIT_ISOLATED, false);
  }
  if (!strcmp(type, "Punctuation")) {
    WN_TRY(read_behavior(r, object, &behavior));
    return wn_bpe_add_split(r->ctx, r->name, r->bpe, punctuation, behavior, false);
  }
  if (!strcmp(type, "Whitespace"))
    return wn_bpe_add_split(r->ctx, r->name, r->bpe, "\\w+|[^\\w\\s]+", WN_SPLIT_REMOVED, true);
  if (!strcmp(type, "WhitespaceSplit"))
    return wn_bpe_add_split(r->ctx, r->name, r->bpe, "\\s", WN_SPLIT_REMOVED, false);
  return unknown(r, "pre_tokenizer", type);
}

static wn_status find_byte_level(struct reader *r, const json_t *object, const char *type) {
  (void)object;
  r->bpe->byte_level = r->bpe->byte_level || !strcmp(type, "ByteLevel");
  return WN_OK;
}

/* --- decoder --- */

/* The steps read so far: which orders mean what our decoding does. */
struct decoding {
  bool fused, stripped, spaces; /* spaces: a Metaspace may have a space for U+2581 */
  struct wn_decoder_rules *rules;
};

static wn_status read_strip(const struct reader *r, const json_t *object, struct decoding *d) {
  const char *content;
  WN_TRY(get_string(r, object, "decoder", "content", &content));
  const json_int_t start = json_integer_value(json_object_get(object, "start"));
  const json_int_t stop = json_integer_value(json_object_get(object, "stop"));
  if (!content || strcmp(content, " ") != 0 || start < 0 || start > 1 || stop != 0)
    return unknown(r, "decoder", "Strip of anything but one space before the text");
  if (start == 1 && !d->fused) return unknown(r, "decoder", "Strip of each token");
  if (start == 1) d->rules->strip = WN_STRIP_SPACE;
  d->stripped = true;
  return WN_OK;
}

static wn_status read_decoder_step(struct reader *r, const json_t *object, const char *type) {
  const char *from, *to;
  struct decoding *d = r->decoding;
  struct wn_decoder_rules *rules = d->rules;
  if (!strcmp(type, "Metaspace")) {
    enum wn_prepend prepend;
    if (rules->marks || d->fused || d->stripped) return unknown(r, "after other steps, the decoder", type);
    WN_TRY(read_scheme(r, object, "decoder", d->spaces, &prepend));
    rules->strip = prepend == WN_PREPEND_NEVER ? WN_STRIP_NONE : WN_STRIP_MARKS;
    rules->marks = true;
    return WN_OK;
  }
  if (!strcmp(type, "Strip")) return read_strip(r, object, d);
  if (!strcmp(type, "Replace")) {
    WN_TRY(get_string(r, json_object_get(object, "pattern"), "decoder.pattern", "String", &from));
    WN_TRY(get_string(r, object, "decoder", "content", &to));
    if (!from || strcmp(from, WN_SPACE_MARK) != 0 || !to || strcmp(to, " ") != 0)
      return unknown(r, "decoder", "Replace of anything but U+2581 by a space");
    if (d->stripped) return unknown(r, "after Strip, the decoder", type);
    rules->marks = true;
    return WN_OK;
  }
  if (!strcmp(type, "ByteFallback")) {
    if (d->fused) return unknown(r, "after Fuse, the decoder", type);
    rules->bytes = true;
    return WN_OK;
  }
  if (strcmp(type, "Fuse") != 0) return unknown(r, "decoder", type);
  d->fused = true;
  return WN_OK;
}

wn_status wn_bpe_json_decoder(wn_context *ctx, const char *name, const json_t *object, bool spaces,
                              struct wn_decoder_rules *out) {
  struct decoding decoding = {.spaces = spaces, .rules = out};
  struct reader r = {.ctx = ctx, .name = name, .decoding = &decoding};
  *out = (struct wn_decoder_rules){0};
  if (!object || json_is_null(object)) return unknown(&r, "decoder", "null");
  return read_steps(&r, object, "decoder", "decoders", 0, read_decoder_step);
}

/* The file must ask for what our decoding does: ByteLevel, or U+2581 for spaces with bytes in between. A byte-level
 * model without a decoder is decoded as one with it. */
static wn_status read_decoder(struct reader *r, const json_t *object) {
  struct wn_decoder_rules rules;
  const char *type;
  if (r->bpe->byte_level) {
    if (!object || json_is_null(object)) return WN_OK;
    WN_TRY(get_type(r, object, "decoder", &type));
    return strcmp(type, "ByteLevel") ? unknown(r, "decoder", type) : WN_OK;
  }
  WN_TRY(wn_bpe_json_decoder(r->ctx, r->name, object, false, &rules));
  r->bpe->strip = rules.strip;
  r->bpe->marks = rules.marks;
  r->bpe->bytes = rules.bytes;
  return WN_OK;
}

/* --- model --- */

static wn_status bpe_json_read_id(const struct reader *r, const char *where, const json_t *value, int32_t *out) {
  json_int_t id = json_integer_value(value);
  if (!json_is_integer(value) || id < 0 || id >= WN_LIMIT_VOCABULARY)
    return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: the id of \"%.60s\" is not a whole number from 0 to %d", r->name, where,
                   WN_LIMIT_VOCABULARY - 1);
  *out = (int32_t)id;
  return WN_OK;
}

/* The id of an added token. One whose text is in the vocabulary has that id, whatever its own says. */
static wn_status bpe_json_added_id(const struct reader *r, const json_t *vocab, const json_t *token, int32_t *out) {
  const char *content = json_string_value(json_object_get(token, "content"));
  const json_t *id = json_object_get(vocab, content);
  return bpe_json_read_id(r, content, id ? id : json_object_get(token, "id"), out);
}

/* *size: one more than the largest id. */
static wn_status bpe_json_measure(struct reader *r, const json_t *vocab, const json_t *added, int32_t *size) {
  const char *key;
  json_t *value;
  int32_t id = -1, largest = -1;
  json_object_foreach((json_t *)vocab, key, value) {
    WN_TRY(bpe_json_read_id(r, key, value, &id));
    if (id > largest) largest = id;
  }
  for (size_t i = 0; i < json_array_size(added); i++) {
    const json_t *token = json_array_get(added, i);
    const char *content = json_string_value(json_object_get(token, "content"));
    if (!content) return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: added_tokens[%zu].content is not a string", r->name, i);
    WN_TRY(bpe_json_added_id(r, vocab, token, &id));
    if (id > largest) largest = id;
  }
  size_t count = json_object_size(vocab) + json_array_size(added);
  /* Gaps between ids are rare and small. Without this check a small file could ask for a huge array. */
  if (largest < 0 || (size_t)largest >= 2 * count + 65536)
    return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: the largest id is %d for %zu tokens", r->name, largest, count);
  *size = largest + 1;
  return WN_OK;
}

static wn_status bpe_json_read_vocab(struct reader *r, const json_t *vocab) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)vocab, key, value) {
    int32_t id = (int32_t)json_integer_value(value);
    if (r->bpe->vocab.tokens[id].kind != WN_TOKEN_NONE)
      return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: two tokens have the id %d", r->name, id);
    WN_TRY(wn_bpe_set_token(r->ctx, r->name, r->bpe, id, key, strlen(key), WN_TOKEN_TEXT));
  }
  return WN_OK;
}

static wn_status read_added(struct reader *r, const json_t *vocab, const json_t *added) {
  char own[2 * WN_TOKEN_MAX_BYTES + 1];
  for (size_t i = 0; i < json_array_size(added); i++) {
    const json_t *object = json_array_get(added, i);
    const char *content = json_string_value(json_object_get(object, "content"));
    int32_t id = -1;
    size_t bytes = strlen(content);
    bool special, single, lstrip, rstrip, normalized;
    WN_TRY(bpe_json_added_id(r, vocab, object, &id));
    WN_TRY(get_bool(r, object, "added_tokens", "special", false, &special));
    WN_TRY(get_bool(r, object, "added_tokens", "single_word", false, &single));
    WN_TRY(get_bool(r, object, "added_tokens", "lstrip", false, &lstrip));
    WN_TRY(get_bool(r, object, "added_tokens", "rstrip", false, &rstrip));
    WN_TRY(get_bool(r, object, "added_tokens", "normalized", !special, &normalized));
    if (bytes == 0) return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: added token %d is empty", r->name, id);
    struct wn_token *t = &r->bpe->vocab.tokens[id];
    bool model = false;
    if (t->kind != WN_TOKEN_NONE) { /* also in the vocabulary, with the same text */
      size_t n = t->kind == WN_TOKEN_TEXT ? wn_bpe_token_text(r->bpe, id, own) : 0;
      if (n != bytes || memcmp(own, content, n))
        return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: two tokens have the id %d", r->name, id);
      model = t->model;
      for (size_t k = 0; k < bytes && r->bpe->byte_level; k++) model = model && content[k] > 0x20 && content[k] < 0x7F;
    }
    enum wn_token_kind kind = special ? WN_TOKEN_SPECIAL : WN_TOKEN_ADDED;
    WN_TRY(wn_bpe_set_token(r->ctx, r->name, r->bpe, id, content, bytes, kind));
    t->model = model;
    t->lstrip = lstrip;
    t->rstrip = rstrip;
    t->normalized = normalized;
    t->single_word = single;
  }
  return WN_OK;
}

static wn_status bpe_json_read_merges(struct reader *r, const json_t *merges) {
  if (!json_is_array(merges)) return wrong(r, "model.merges", "an array");
  WN_TRY(wn_bpe_reserve_merges(r->ctx, r->bpe, json_array_size(merges)));
  r->bpe->last_merge = true;
  for (size_t i = 0; i < json_array_size(merges); i++) {
    const json_t *merge = json_array_get(merges, i);
    const char *left = json_string_value(merge), *right = NULL;
    size_t left_bytes = 0;
    if (left) { /* of the form "a b" */
      const char *space = strchr(left, ' ');
      if (space && !strchr(space + 1, ' ')) {
        left_bytes = (size_t)(space - left);
        right = space + 1;
      }
    } else if (json_array_size(merge) == 2) { /* of the form ["a", "b"] */
      left = json_string_value(json_array_get(merge, 0));
      right = json_string_value(json_array_get(merge, 1));
      left_bytes = left ? strlen(left) : 0;
    }
    if (!left || !right)
      return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", r->name, i);
    WN_TRY(wn_bpe_add_merge(r->ctx, r->name, r->bpe, (uint32_t)i, left, left_bytes, right, strlen(right)));
  }
  return WN_OK;
}

static wn_status read_model(struct reader *r, const json_t *model, const json_t *added) {
  struct wn_bpe *bpe = r->bpe;
  const json_t *vocab = json_object_get(model, "vocab");
  const char *type, *text;
  int32_t size = 0;
  if (!json_is_object(model)) return wrong(r, "model", "an object");
  WN_TRY(get_string(r, model, "model", "type", &type));
  if (type && strcmp(type, "BPE")) return unknown(r, "model", type);
  if (!json_is_object(vocab)) return wrong(r, "model.vocab", "an object");
  if (added && !json_is_null(added) && !json_is_array(added)) return wrong(r, "added_tokens", "an array");
  static const char *const affixes[2] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (int i = 0; i < 2; i++) {
    WN_TRY(get_string(r, model, "model", affixes[i], &text));
    if (text && text[0]) return unknown(r, "model with", affixes[i]);
  }
  if (json_number_value(json_object_get(model, "dropout")) != 0) return unknown(r, "model with", "dropout");
  WN_TRY(get_bool(r, model, "model", "fuse_unk", false, &bpe->fuse_unknown));
  WN_TRY(get_bool(r, model, "model", "byte_fallback", false, &bpe->byte_fallback));
  WN_TRY(get_bool(r, model, "model", "ignore_merges", false, &bpe->ignore_merges));
  if (bpe->byte_fallback && !bpe->byte_level && !bpe->bytes)
    return unknown(r, "model with byte_fallback and", "a decoder without ByteFallback");
  WN_TRY(bpe_json_measure(r, vocab, added, &size));
  WN_TRY(wn_vocab_create(r->ctx, r->name, size, &bpe->vocab));
  WN_TRY(bpe_json_read_vocab(r, vocab));
  WN_TRY(read_added(r, vocab, added));
  WN_TRY(wn_bpe_index(r->ctx, r->name, bpe));
  WN_TRY(get_string(r, model, "model", "unk_token", &text));
  if (text) {
    const json_t *id = json_object_get(vocab, text);
    if (!json_is_integer(id))
      return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: model.unk_token \"%.60s\" is not a token", r->name, text);
    bpe->unknown = (int32_t)json_integer_value(id);
  }
  return bpe_json_read_merges(r, json_object_get(model, "merges"));
}

/* --- post_processor: tokens added before and after every text --- */

static wn_status read_template(struct reader *r, const json_t *object) {
  const json_t *single = json_object_get(object, "single"), *ids = json_object_get(object, "special_tokens");
  bool behind = false;
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *part = json_array_get(single, i);
    if (json_object_get(part, "Sequence")) {
      behind = true;
      continue;
    }
    const char *name = json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
    if (!name) return wrong(r, "post_processor.single", "a list of Sequence and SpecialToken");
    const json_t *list = json_object_get(json_object_get(ids, name), "ids");
    const json_t *id = json_array_get(list, 0);
    int32_t *out = behind ? r->eos : r->bos;
    if (json_array_size(list) != 1 || *out >= 0) return unknown(r, "post_processor", "several special tokens in a row");
    WN_TRY(bpe_json_read_id(r, name, id, out));
    if (*out >= r->bpe->vocab.size || r->bpe->vocab.tokens[*out].kind == WN_TOKEN_NONE)
      return wn_fail(r->ctx, WN_ERR_FORMAT, "%s: post_processor names token %d, which does not exist", r->name, *out);
  }
  return WN_OK;
}

static wn_status read_post_processor(struct reader *r, const json_t *object, const char *type) {
  if (!strcmp(type, "TemplateProcessing")) return read_template(r, object);
  return strcmp(type, "ByteLevel") ? unknown(r, "post_processor", type) : WN_OK;
}

wn_status wn_bpe_read_json(wn_context *ctx, const char *name, const json_t *root, struct wn_bpe *bpe, int32_t *bos,
                           int32_t *eos) {
  struct reader r = {.ctx = ctx, .name = name, .bpe = bpe, .bos = bos, .eos = eos};
  *bos = *eos = -1;
  const json_t *pre = json_object_get(root, "pre_tokenizer");
  WN_TRY(read_steps(&r, pre, "pre_tokenizer", "pretokenizers", 0, find_byte_level));
  WN_TRY(read_steps(&r, json_object_get(root, "normalizer"), "normalizer", "normalizers", 0, read_normalizer));
  WN_TRY(read_steps(&r, pre, "pre_tokenizer", "pretokenizers", 0, read_pre_tokenizer));
  WN_TRY(read_decoder(&r, json_object_get(root, "decoder")));
  WN_TRY(read_model(&r, json_object_get(root, "model"), json_object_get(root, "added_tokens")));
  const json_t *post = json_object_get(root, "post_processor");
  WN_TRY(read_steps(&r, post, "post_processor", "processors", 0, read_post_processor));
  return wn_bpe_finish(ctx, name, bpe);
}
