/* Token files: read through a memory map, written under a temporary name.
 *
 * llm.c's layout: a header of 256 little-endian int32 (magic, version, count; the rest 0), then the tokens, as uint16
 * (magic 20240520, version 1) or uint32 (magic 20240801, version 7). For counts from 2^32 on the upper half is in the
 * fourth number, which llm.c leaves 0. At byte 16 the header has "wn-xxh3\n", the XXH3 of the header (with this sum
 * read as 0) and the XXH3 of the tokens. llm.c has zeros there, and readers of its layout ignore these bytes. nanoGPT's
 * layout: uint16 tokens and nothing else. The file must have exactly the size that the header gives: a truncated file
 * is noticed at once. */
#include "data/token_file.h"
#include "base/alloc.h"
#include "base/misuse.h"
#include "data/inputs.h"
#include "io/folder.h"

#include <inttypes.h>
#include <string.h>

#define HEADER_BYTES 1024
#define MAGIC_NARROW 20240520u
#define VERSION_NARROW 1u
#define MAGIC_WIDE 20240801u
#define VERSION_WIDE 7u
#define VERIFY_LIMIT ((size_t)1 << 30) /* larger files are compared with their checksum only by wn_verify */
enum { MARK_AT = 16, HEADER_SUM_AT = 24, BODY_SUM_AT = 32 };
static const uint8_t token_mark[8] = "wn-xxh3\n";

struct token_part {
  struct wn_map map;
  const uint8_t *tokens; /* count * width bytes in the map */
  uint64_t count;
  int width;
};
struct wn_token_file {
  struct wn_inputs names;   /* of the parts, one after the other: one file, or shards */
  struct token_part *parts; /* [names.count] */
  uint64_t count;           /* of all */
  char *path;
};

static uint32_t load_u32(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static void store_u32(uint8_t *p, uint32_t x) {
  for (int i = 0; i < 4; i++) p[i] = (uint8_t)(x >> (8 * i));
}

static uint64_t load_u64(const uint8_t *p) {
  return load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

/* Does the header say that there are checksums? A mark with a few wrong bits counts as a damaged one. */
static bool token_file_marked(const uint8_t *header, bool *damaged) {
  int wrong = 0, some = 0;
  for (int i = 0; i < 8; i++) {
    wrong += __builtin_popcount((unsigned)(header[MARK_AT + i] ^ token_mark[i]));
    some |= header[MARK_AT + i];
  }
  *damaged = some != 0 && wrong > 0 && wrong <= 8;
  return wrong == 0;
}

static uint64_t token_file_header_sum(const uint8_t *header) {
  uint8_t copy[HEADER_BYTES];
  memcpy(copy, header, sizeof copy);
  memset(copy + HEADER_SUM_AT, 0, 8);
  return wn_checksum(copy, sizeof copy);
}

/* Checks the header, or the tokens too. *has: whether the file has checksums. */
static wn_status token_file_check(wn_context *ctx, const char *path, const struct wn_map *map, bool data, bool *has) {
  bool damaged = false;
  *has = map->bytes >= HEADER_BYTES && token_file_marked(map->data, &damaged);
  if (damaged || (*has && load_u64(map->data + HEADER_SUM_AT) != token_file_header_sum(map->data)))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: the header of the token file is damaged: %s", path,
                   damaged ? "the mark of its checksums is" : "its checksum is that of another one");
  if (!*has || !data) return WN_OK;
  const uint64_t found = wn_checksum(map->data + HEADER_BYTES, map->bytes - HEADER_BYTES),
                 expected = load_u64(map->data + BODY_SUM_AT);
  if (found == expected) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT,
                 "%s: the tokens are damaged: their checksum is %016" PRIx64 ", their %zu bytes have %016" PRIx64, path,
                 expected, map->bytes - HEADER_BYTES, found);
}

wn_status wn_token_file_verify(wn_context *ctx, const wn_token_file *file, bool *has) {
  WN_CHECK_CALL(WN_HANDLE(file, TOKEN_FILE));
  bool found;
  if (!file) return wn_fail(ctx, WN_ERR_ARGUMENT, "wn_token_file_verify needs a file");
  bool all = true;
  for (size_t i = 0; i < file->names.count; i++) {
    WN_TRY(token_file_check(ctx, file->names.paths[i], &file->parts[i].map, true, &found));
    all &= found;
  }
  if (has) *has = all;
  return WN_OK;
}

/* Detects the layout and checks the size. */
static wn_status token_file_read_header(wn_context *ctx, const char *path, struct token_part *f) {
  const uint8_t *data = f->map.data;
  size_t bytes = f->map.bytes;
  if (bytes == 0) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the token file is empty", path);
  uint32_t magic = bytes >= 4 ? load_u32(data) : 0;
  bool sums;
  WN_TRY(token_file_check(ctx, path, &f->map, false, &sums)); /* for every layout: the magic itself may be damaged */
  if (magic != MAGIC_NARROW && magic != MAGIC_WIDE) {
    if (bytes % 2)
      return wn_fail(ctx, WN_ERR_FORMAT,
                     "%s: not a token file: no llm.c header, and %zu bytes are not a multiple of a uint16 token", path,
                     bytes);
    f->tokens = data;
    f->width = 2;
    f->count = bytes / 2;
    return WN_OK;
  }
  if (bytes < HEADER_BYTES)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: truncated token file: %zu bytes, the header alone has %d", path, bytes,
                   HEADER_BYTES);
  uint32_t version = load_u32(data + 4), expected = magic == MAGIC_NARROW ? VERSION_NARROW : VERSION_WIDE;
  if (version != expected)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: token file of magic %u has version %u, expected %u", path, magic, version,
                   expected);
  f->width = magic == MAGIC_NARROW ? 2 : 4;
  f->count = (uint64_t)load_u32(data + 12) << 32 | load_u32(data + 8);
  f->tokens = data + HEADER_BYTES;
  /* Compared by division, since the product may overflow. */
  uint64_t body = bytes - HEADER_BYTES;
  if (body / (uint64_t)f->width != f->count || body % (uint64_t)f->width)
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: the header states %" PRIu64 " tokens of %d bytes, the file has %" PRIu64 " bytes after it",
                   path, f->count, f->width, body);
  return token_file_check(ctx, path, &f->map, bytes <= VERIFY_LIMIT, &sums);
}

static wn_status token_file_open_parts(wn_context *ctx, const char *path, struct wn_token_file *f) {
  char where[4096];
  WN_TRY(wn_inputs_match(ctx, path, &f->names));
  WN_TRY(WN_ALLOC(ctx, "token files", f->names.count, &f->parts));
  for (size_t i = 0; i < f->names.count; i++) {
    const char *name = f->names.paths[i];
    WN_TRY(wn_folder_path(ctx, where, sizeof where, name));
    WN_TRY(wn_map_open(ctx, where, &f->parts[i].map));
    WN_TRY(token_file_read_header(ctx, name, &f->parts[i]));
    if (__builtin_add_overflow(f->count, f->parts[i].count, &f->count))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: more tokens than can be counted", path);
  }
  return WN_OK;
}

wn_status wn_token_file_open(wn_context *ctx, const char *path, wn_token_file **out) {
  WN_CHECK_CALL(WN_POINTER(path), WN_POINTER(out));
  *out = NULL;
  wn_token_file *f;
  WN_TRY(WN_ALLOC(ctx, "token file", 1, &f));
  wn_handle_mark(f, WN_HANDLE_TOKEN_FILE);
  wn_status status = token_file_open_parts(ctx, path, f);
  if (status == WN_OK && !(f->path = wn_strdup(ctx, path))) status = WN_ERR_MEMORY;
  if (status != WN_OK) {
    wn_token_file_close(f);
    return status;
  }
  *out = f;
  return WN_OK;
}

void wn_token_file_close(wn_token_file *file) {
  WN_CHECK_OR(, WN_HANDLE(file, TOKEN_FILE));
  for (size_t i = 0; file->parts && i < file->names.count; i++) wn_map_close(&file->parts[i].map);
  wn_free(file->parts);
  wn_inputs_clear(&file->names);
  wn_free(file->path);
  wn_free(file);
}

uint64_t wn_token_file_count(const wn_token_file *file) {
  WN_CHECK_OR(0, WN_HANDLE(file, TOKEN_FILE));
  return file->count;
}
const char *wn_token_file_path(const wn_token_file *file) {
  return file->path;
}

static wn_status token_part_read(wn_context *ctx, const char *path, const struct token_part *part, uint64_t first,
                                 uint64_t count, int32_t *out) {
  if (part->width == 2) {
    const uint8_t *p = part->tokens + 2 * first;
    for (uint64_t i = 0; i < count; i++) out[i] = (int32_t)(p[2 * i] | p[2 * i + 1] << 8);
    return WN_OK;
  }
  const uint8_t *p = part->tokens + 4 * first;
  uint32_t all = 0;
  for (uint64_t i = 0; i < count; i++) {
    uint32_t x = load_u32(p + 4 * i);
    all |= x;
    out[i] = (int32_t)(x & INT32_MAX);
  }
  if (all > INT32_MAX) {
    uint64_t i = 0;
    while (load_u32(p + 4 * i) <= INT32_MAX) i++;
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: token %" PRIu64 " is %u, past any vocabulary", path, first + i,
                   load_u32(p + 4 * i));
  }
  return WN_OK;
}

wn_status wn_token_file_read(wn_context *ctx, const wn_token_file *file, uint64_t first, uint64_t count, int32_t *out) {
  WN_CHECK_CALL(WN_HANDLE(file, TOKEN_FILE), WN_ARRAY(out, count));
  if (first > file->count || count > file->count - first)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: tokens %" PRIu64 " to %" PRIu64 " asked for, the file has %" PRIu64,
                   file->path, first, first + count, file->count);
  for (size_t i = 0; count > 0; first -= file->parts[i++].count) {
    const struct token_part *part = &file->parts[i];
    if (first >= part->count) continue;
    const uint64_t n = count < part->count - first ? count : part->count - first;
    WN_TRY(token_part_read(ctx, file->names.paths[i], part, first, n, out));
    out += n;
    first += n;
    count -= n;
  }
  return WN_OK;
}

static bool token_file_has_header(const struct wn_token_writer *w) {
  return strcmp(w->layout, "llmc") == 0;
}

static void token_file_make_header(const struct wn_token_writer *w, uint8_t header[HEADER_BYTES]) {
  memset(header, 0, HEADER_BYTES);
  store_u32(header, w->width == 2 ? MAGIC_NARROW : MAGIC_WIDE);
  store_u32(header + 4, w->width == 2 ? VERSION_NARROW : VERSION_WIDE);
  store_u32(header + 8, (uint32_t)w->count);
  store_u32(header + 12, (uint32_t)(w->count >> 32));
  memcpy(header + MARK_AT, token_mark, sizeof token_mark);
  const uint64_t body = wn_checksum_end(&w->sum);
  store_u32(header + BODY_SUM_AT, (uint32_t)body);
  store_u32(header + BODY_SUM_AT + 4, (uint32_t)(body >> 32));
  const uint64_t sum = token_file_header_sum(header);
  store_u32(header + HEADER_SUM_AT, (uint32_t)sum);
  store_u32(header + HEADER_SUM_AT + 4, (uint32_t)(sum >> 32));
}

/* The sum of the tokens that are there, which must be the expected one. */
static wn_status token_writer_go_on(wn_context *ctx, const struct wn_token_kept *kept, const char *path,
                                    struct wn_token_writer *w) {
  struct wn_map map;
  const uint64_t head = token_file_has_header(w) ? HEADER_BYTES : 0;
  WN_TRY(wn_writer_reopen(ctx, kept->path, path, head + kept->count * (uint64_t)w->width, &w->file));
  WN_TRY(wn_map_open(ctx, kept->path, &map));
  if (map.bytes > head) wn_checksum_add(&w->sum, map.data + head, map.bytes - head);
  wn_map_close(&map);
  w->count = kept->count;
  return wn_checksum_end(&w->sum) == kept->sum
             ? WN_OK
             : wn_fail(ctx, WN_ERR_FORMAT, "%s: the tokens are damaged: their checksum is another one", kept->path);
}

wn_status wn_token_writer_open(wn_context *ctx, const char *path, const char *layout, int32_t vocab_size,
                               const struct wn_token_kept *kept, struct wn_token_writer *w) {
  *w = (struct wn_token_writer){.layout = layout ? layout : "llmc", .vocab_size = vocab_size};
  bool bare = !strcmp(w->layout, "nanogpt");
  if (!bare && strcmp(w->layout, "llmc"))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "token file layout \"%s\" is not one of llmc, nanogpt", w->layout);
  if (vocab_size < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "a vocabulary of %d tokens cannot be written", vocab_size);
  w->width = vocab_size <= 65536 ? 2 : 4;
  if (bare && w->width == 4)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "%s: layout nanogpt holds tokens below 65536, the vocabulary has %d; use "
                   "layout llmc",
                   path, vocab_size);
  static const uint8_t blank[HEADER_BYTES];
  wn_checksum_begin(&w->sum);
  wn_status status = WN_OK;
  if (kept && kept->count > 0) {
    status = token_writer_go_on(ctx, kept, path, w);
  } else {
    WN_TRY(kept ? wn_writer_reopen(ctx, kept->path, path, 0, &w->file) : wn_writer_open(ctx, path, &w->file));
    if (token_file_has_header(w)) status = wn_writer_write(ctx, &w->file, blank, sizeof blank);
  }
  if (status != WN_OK && kept && kept->count > 0) wn_writer_keep(&w->file); /* it can be looked at */
  if (status != WN_OK) wn_token_writer_abort(w);
  return status;
}

wn_status wn_token_writer_append(wn_context *ctx, struct wn_token_writer *w, const int32_t *tokens, uint64_t count) {
  uint8_t buffer[8192];
  while (count > 0) {
    size_t n = count < sizeof buffer / 4 ? (size_t)count : sizeof buffer / 4;
    for (size_t i = 0; i < n; i++) {
      if (tokens[i] < 0 || tokens[i] >= w->vocab_size)
        return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: token %" PRIu64 " is %d, outside the vocabulary of %d", w->file.path,
                       w->count + i, tokens[i], w->vocab_size);
      uint32_t x = (uint32_t)tokens[i];
      if (w->width == 2) {
        buffer[2 * i] = (uint8_t)x;
        buffer[2 * i + 1] = (uint8_t)(x >> 8);
      } else {
        store_u32(buffer + 4 * i, x);
      }
    }
    wn_checksum_add(&w->sum, buffer, n * (size_t)w->width);
    WN_TRY(wn_writer_write(ctx, &w->file, buffer, n * (size_t)w->width));
    w->count += n;
    tokens += n;
    count -= n;
  }
  return WN_OK;
}

wn_status wn_token_writer_commit(wn_context *ctx, struct wn_token_writer *w) {
  if (token_file_has_header(w)) { /* count and checksum are known only now */
    uint8_t header[HEADER_BYTES];
    token_file_make_header(w, header);
    WN_TRY(wn_writer_rewrite(ctx, &w->file, header, sizeof header));
  }
  return wn_writer_commit(ctx, &w->file);
}

void wn_token_writer_abort(struct wn_token_writer *w) {
  if (w->file.f || w->file.temporary[0]) wn_writer_abort(&w->file);
}

wn_status wn_token_file_write(wn_context *ctx, const char *path, const char *layout, int32_t vocab_size,
                              const int32_t *tokens, uint64_t count) {
  WN_CHECK_CALL(WN_POINTER(path), WN_ARRAY(tokens, count));
  struct wn_token_writer w;
  WN_TRY(wn_token_writer_open(ctx, path, layout, vocab_size, NULL, &w));
  wn_status status = wn_token_writer_append(ctx, &w, tokens, count);
  if (status == WN_OK) status = wn_token_writer_commit(ctx, &w);
  if (status != WN_OK) wn_token_writer_abort(&w);
  return status;
}
