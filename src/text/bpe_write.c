/* Writes a tokenizer.json from any BPE model, including one read from a GGUF file. */
#include <stdlib.h>
#include "base/alloc.h"
#include "base/error.h"
#include "text/bpe_json.h"

static json_t *token_string(const struct wn_bpe *bpe, int32_t id) {
  char text[2 * WN_TOKEN_MAX_BYTES + 1];
  size_t n = wn_bpe_token_text(bpe, id, text);
  return json_stringn(text, n);
}

void wn_json_list_add(json_t **list, json_t *value) {
  if (json_array_append_new(*list, value) == 0) return;
  json_decref(*list);
  *list = NULL;
}

static json_t *write_normalizer(const struct wn_bpe *bpe) {
  if (bpe->normalize_count == 0) return json_null();
  json_t *list = json_array();
  for (int i = 0; i < bpe->normalize_count; i++) {
    const struct wn_normalize_step *step = &bpe->normalize[i];
    if (step->kind == WN_NORMALIZE_PREPEND)
      wn_json_list_add(&list, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", step->to));
    else if (step->kind == WN_NORMALIZE_REPLACE)
      wn_json_list_add(&list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", step->from,
                                        "content", step->to));
    else
      wn_json_list_add(&list, json_pack("{s:s}", "type", wn_bpe_json_forms[step->kind]));
  }
  return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", list);
}

static json_t *byte_level(bool prefix, bool regex) {
  return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", prefix, "trim_offsets", 1,
                   "use_regex", regex);
}

static json_t *write_pre_tokenizer(const struct wn_bpe *bpe) {
  json_t *list = json_array();
  bool prefix = false, regex = false;
  for (int i = 0; i < bpe->split_count; i++) {
    const struct wn_split_step *step = &bpe->split[i];
    if (step->kind == WN_SPLIT_PREFIX_SPACE) { /* only within ByteLevel, with its pattern or none */
      prefix = true;
      regex = i + 1 < bpe->split_count;
      break;
    }
    if (step->kind == WN_SPLIT_METASPACE)
      wn_json_list_add(&list, json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", WN_SPACE_MARK,
                                        "prepend_scheme", wn_bpe_json_schemes[step->prepend], "split", 0));
    else
      wn_json_list_add(&list, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                        wn_pattern_text(step->pattern), "behavior",
                                        wn_bpe_json_behaviors[step->behavior], "invert", step->invert));
  }
  if (bpe->byte_level) wn_json_list_add(&list, byte_level(prefix, regex));
  if (list && json_array_size(list) == 0) {
    json_decref(list);
    return json_null();
  }
  return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

static json_t *write_decoder(const struct wn_bpe *bpe) {
  if (bpe->byte_level) return byte_level(true, true);
  json_t *list = json_array();
  if (bpe->bytes) wn_json_list_add(&list, json_pack("{s:s}", "type", "ByteFallback"));
  if (bpe->strip == WN_STRIP_MARKS)
    wn_json_list_add(&list, json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", WN_SPACE_MARK,
                                      "prepend_scheme", "always", "split", 0));
  else if (bpe->marks)
    wn_json_list_add(
        &list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", WN_SPACE_MARK, "content", " "));
  wn_json_list_add(&list, json_pack("{s:s}", "type", "Fuse"));
  if (bpe->strip == WN_STRIP_SPACE)
    wn_json_list_add(&list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
  return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

static json_t *write_added(const struct wn_bpe *bpe) {
  json_t *list = json_array();
  for (int32_t id = 0; id < bpe->vocab.size; id++) {
    const struct wn_token *t = &bpe->vocab.tokens[id];
    if (t->kind != WN_TOKEN_SPECIAL && t->kind != WN_TOKEN_ADDED) continue;
    wn_json_list_add(&list, json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", token_string(bpe, id),
                                      "single_word", t->single_word, "lstrip", t->lstrip, "rstrip", t->rstrip,
                                      "normalized", t->normalized, "special", t->kind == WN_TOKEN_SPECIAL));
  }
  return list;
}

static int bpe_write_by_rank(const void *a, const void *b) {
  const struct wn_merge *x = *(const struct wn_merge *const *)a, *y = *(const struct wn_merge *const *)b;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

wn_status wn_bpe_merges(wn_context *ctx, const struct wn_bpe *bpe, const struct wn_merge ***out, uint32_t *count) {
  uint32_t n = 0;
  WN_TRY(WN_ALLOC(ctx, "merges", bpe->merge_count + 1, out));
  for (uint32_t i = 0; bpe->merges && i <= bpe->merge_mask; i++)
    if (bpe->merges[i].pair != UINT64_MAX) (*out)[n++] = &bpe->merges[i];
  if (n) qsort(*out, n, sizeof **out, bpe_write_by_rank);
  *count = n;
  return WN_OK;
}

static wn_status write_merges(wn_context *ctx, const struct wn_bpe *bpe, json_t *list) {
  const struct wn_merge **order;
  uint32_t n;
  WN_TRY(wn_bpe_merges(ctx, bpe, &order, &n));
  bool complete = true;
  for (uint32_t i = 0; i < n && complete; i++)
    complete = !json_array_append_new(list, json_pack("[o, o]", token_string(bpe, (int32_t)(order[i]->pair >> 32)),
                                                      token_string(bpe, (int32_t)(order[i]->pair & UINT32_MAX))));
  wn_free(order);
  return complete ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a tokenizer");
}

json_t *wn_json_template(json_t *token, int32_t bos) {
  json_t *ids = json_object();
  const char *name = json_string_value(token);
  if (!name ||
      json_object_set_new(ids, name, json_pack("{s:s, s:[i], s:[s]}", "id", name, "ids", bos, "tokens", name))) {
    json_decref(token);
    json_decref(ids);
    return NULL;
  }
  json_t *out =
      json_pack("{s:s, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}], s:o}",
                "type", "TemplateProcessing", "single", "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A",
                "type_id", 0, "pair", "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                "Sequence", "id", "B", "type_id", 1, "special_tokens", ids);
  json_decref(token);
  return out;
}

wn_status wn_bpe_write_json(wn_context *ctx, const struct wn_bpe *bpe, int32_t bos, json_t **out) {
  json_t *vocab = json_object(), *merges = json_array();
  *out = NULL;
  bool complete = vocab && merges;
  for (int32_t id = 0; id < bpe->vocab.size && complete; id++) {
    /* Added tokens are listed too: Hugging Face tokenizers gives new ids to those that the vocabulary lacks. */
    if (bpe->vocab.tokens[id].kind == WN_TOKEN_NONE) continue;
    json_t *text = token_string(bpe, id);
    complete = text && json_object_set_new_nocheck(vocab, json_string_value(text), json_integer(id)) == 0;
    json_decref(text);
  }
  wn_status status =
      complete ? write_merges(ctx, bpe, merges) : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a tokenizer");
  if (status != WN_OK) {
    json_decref(vocab);
    json_decref(merges);
    return status;
  }
  json_t *unk = bpe->unknown >= 0 ? token_string(bpe, bpe->unknown) : json_null();
  json_t *model =
      json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token", unk,
                "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", bpe->fuse_unknown, "byte_fallback",
                bpe->byte_fallback, "ignore_merges", bpe->ignore_merges, "vocab", vocab, "merges", merges);
  *out = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
                   "added_tokens", write_added(bpe), "normalizer", write_normalizer(bpe), "pre_tokenizer",
                   write_pre_tokenizer(bpe), "post_processor",
                   bos < 0 ? json_null() : wn_json_template(token_string(bpe, bos), bos), "decoder", write_decoder(bpe),
                   "model", model);
  return *out ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a tokenizer");
}
