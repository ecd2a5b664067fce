/* Lines of mapped files, packed files and pipes; see lines.h. */
#include "data/lines.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/open.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

#define LINE_LIMIT ((size_t)256 << 20) /* a longer line of a packed file is refused */

static wn_status lines_open_inflated(wn_context *ctx, int fd, struct wn_lines *l) {
  WN_TRY(wn_inflate_open(ctx, l->path, fd, &l->stream));
  l->capacity = (size_t)1 << 18;
  return WN_ALLOC(ctx, "line", l->capacity, &l->buffer);
}

const char *wn_lines_packed(const char *path) {
  return wn_ends_with(path, ".gz") ? "gzip" : wn_ends_with(path, ".zst") ? "zstd" : NULL;
}

wn_status wn_lines_open(wn_context *ctx, const char *path, struct wn_lines *l) {
  *l = (struct wn_lines){.path = strcmp(path, "-") ? path : "standard input"};
  int fd;
  bool regular;
  uintmax_t bytes;
  if (wn_path_is_stream(path)) {
    WN_TRY(wn_open_text(ctx, path, &fd, &regular, &bytes));
    l->file_bytes = bytes;
    return lines_open_inflated(ctx, fd, l);
  }
  WN_TRY(wn_map_open(ctx, path, &l->map));
  l->file_bytes = l->map.bytes;
  if (l->map.bytes == 0) return wn_fail(ctx, WN_ERR_FORMAT, "%s: the file is empty", path);
  const char *named = wn_lines_packed(path);
  if (!named) return WN_OK;
  const char *kind = wn_inflate_kind(l->map.data, l->map.bytes);
  wn_map_close(&l->map);
  if (!kind || strcmp(kind, named))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: not %s data, in spite of its name", path, named);
  WN_TRY(wn_open_file(ctx, path, &fd, &bytes));
  return lines_open_inflated(ctx, fd, l);
}

void wn_lines_close(struct wn_lines *l) {
  wn_inflate_close(l->stream);
  wn_map_close(&l->map);
  wn_free(l->buffer);
  *l = (struct wn_lines){0};
}

uint64_t wn_lines_done(const struct wn_lines *l) {
  if (!l->stream) return l->at;
  if (l->file_bytes == 0) return 0; /* a pipe: its length is unknown */
  return wn_inflate_done(l->stream);
}

/* Inflates more text and appends it to the buffer. */
static wn_status inflate_more(wn_context *ctx, struct wn_lines *l) {
  if (l->begin > 0) {
    memmove(l->buffer, l->buffer + l->begin, l->end - l->begin);
    l->end -= l->begin;
    l->begin = 0;
  }
  if (l->end == l->capacity) {
    if (l->capacity > LINE_LIMIT)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s:%" PRIu64 ": the line is longer than %zu bytes", l->path, l->line + 1,
                     LINE_LIMIT);
    WN_TRY(WN_RESIZE(ctx, "line", &l->buffer, l->end, 2 * l->capacity));
    l->capacity *= 2;
  }
  size_t room = l->capacity - l->end;
  size_t n;
  const char *why;
  const wn_status status = wn_inflate_read(l->stream, l->buffer + l->end, room, &n, &why);
  if (status != WN_OK)
    return wn_fail(ctx, status, "%s: %s (after line %" PRIu64 ", byte %" PRIu64 " of the text)", l->path, why, l->line,
                   l->next_offset + (l->end - l->begin));
  l->end += n;
  l->ended = n == 0;
  return WN_OK;
}

wn_status wn_lines_next(wn_context *ctx, struct wn_lines *l, const char **text, size_t *bytes) {
  *bytes = 0;
  *text = "";
  const char *start, *newline;
  size_t n;
  if (!l->stream) {
    start = (const char *)l->map.data + l->at;
    n = l->map.bytes - l->at;
    newline = n ? memchr(start, '\n', n) : NULL;
    if (newline) n = (size_t)(newline - start) + 1;
    l->at += n;
  } else {
    size_t searched = 0;
    while (!(newline = l->end > l->begin + searched
                           ? memchr(l->buffer + l->begin + searched, '\n', l->end - l->begin - searched)
                           : NULL) &&
           !l->ended) {
      searched = l->end - l->begin;
      WN_TRY(inflate_more(ctx, l));
    }
    start = l->buffer + l->begin;
    n = newline ? (size_t)(newline - start) + 1 : l->end - l->begin;
    l->begin += n;
  }
  if (n == 0) return WN_OK;
  l->line++;
  l->offset = l->next_offset;
  l->next_offset += n;
  *text = start;
  *bytes = n;
  return WN_OK;
}
