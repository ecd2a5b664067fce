/* Finds the documents of a token file; see documents.h. */
#include "data/documents.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "io/folder.h"

#define DOCUMENTS_SCAN ((uint64_t)1 << 16) /* tokens read at a time */
#define DOCUMENTS_LONG_PERCENT 90
enum { DOCUMENTS_PATH_BYTES = 4096 };

/* Visits the documents that are long enough; `out` NULL: only counts them. */
static wn_status documents_walk(wn_context *ctx, const wn_token_file *file, int32_t document_token, uint64_t least,
                                int32_t *buffer, uint64_t *found, struct wn_document_places *out) {
  const uint64_t count = wn_token_file_count(file);
  uint64_t start = 0, n = 0;
  bool inside = false;
  for (uint64_t at = 0; at <= count; at++) {
    if (at % DOCUMENTS_SCAN == 0 && at < count)
      WN_TRY(wn_token_file_read(ctx, file, at, count - at < DOCUMENTS_SCAN ? count - at : DOCUMENTS_SCAN, buffer));
    if (at < count && buffer[at % DOCUMENTS_SCAN] != document_token) continue;
    if (inside && at - start >= least) {
      if (out) out->first[n] = start, out->held[n] = at - start;
      n++;
    }
    inside = true;
    start = at;
  }
  *found = n;
  return WN_OK;
}

wn_status wn_documents_find(wn_context *ctx, const wn_token_file *file, int32_t document_token, uint64_t least,
                            struct wn_document_places *out) {
  void *buffer, *places = NULL;
  uint64_t count = 0;
  *out = (struct wn_document_places){0};
  WN_TRY(wn_alloc(ctx, "tokens", (size_t)DOCUMENTS_SCAN * sizeof(int32_t), &buffer));
  wn_status status = documents_walk(ctx, file, document_token, least, buffer, &count, NULL);
  if (status == WN_OK && count > 0)
    status = wn_alloc(ctx, "places of documents", 2 * (size_t)count * sizeof(uint64_t), &places);
  if (status == WN_OK && count > 0) {
    *out = (struct wn_document_places){.count = count, .first = places, .held = (uint64_t *)places + count};
    status = documents_walk(ctx, file, document_token, least, buffer, &count, out);
  }
  wn_free(buffer);
  if (status != WN_OK) wn_documents_clear(out);
  return status;
}

void wn_documents_clear(struct wn_document_places *documents) {
  wn_free(documents->first);
  *documents = (struct wn_document_places){0};
}

uint64_t wn_documents_long(int64_t T) {
  const uint64_t least = ((uint64_t)T * DOCUMENTS_LONG_PERCENT + 99) / 100;
  return least > 2 ? least : 2;
}

/* The document token in data.json beside the file; -1: none. */
static wn_status token_beside(wn_context *ctx, const char *path, int32_t *out) {
  *out = -1;
  char beside[DOCUMENTS_PATH_BYTES], where[DOCUMENTS_PATH_BYTES];
  const char *slash = strrchr(path, '/');
  const size_t dir = slash ? (size_t)(slash - path) + 1 : 0;
  if (dir + sizeof "data.json" > DOCUMENTS_PATH_BYTES) return WN_OK;
  memcpy(beside, path, dir);
  memcpy(beside + dir, "data.json", sizeof "data.json");
  WN_TRY(wn_folder_path(ctx, where, sizeof where, beside));
  if (!wn_path_exists(where)) return WN_OK;
  json_t *json = NULL;
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TABLE, where, &json));
  const json_t *value = json_object_get(json, "document_token");
  const json_int_t token = value ? json_integer_value(value) : -1;
  const bool known = !value || (json_is_integer(value) && token >= -1 && token <= INT32_MAX);
  json_decref(json);
  if (!known) return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"document_token\" is not a token or -1", where);
  *out = (int32_t)token;
  return WN_OK;
}

wn_status wn_documents_token(wn_context *ctx, const char *path, int32_t given, int64_t vocab_size, int32_t *out) {
  *out = given;
  if (given < 0) WN_TRY(token_beside(ctx, path, out));
  if (*out < vocab_size) return WN_OK;
  return wn_fail(ctx, WN_ERR_CONFIG, "%s: document token %d is outside the vocabulary, 0 to %" PRId64, path, *out,
                 vocab_size - 1);
}
