/* gzip streams through zlib, or plain reading; see inflate.h. */
#include "data/inflate.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/error.h"
#if WN_HAVE_ZLIB
#include <zlib.h>
#endif

enum { INFLATE_MOST = 1 << 24 }; /* in one call */

#if WN_HAVE_ZLIB

struct wn_inflate {
  gzFile gz;
};

static bool inflate_begin(struct wn_inflate *s, int fd) {
  s->gz = gzdopen(fd, "rb");
  if (s->gz) gzbuffer(s->gz, 1 << 18);
  return s->gz != NULL;
}

wn_status wn_inflate_read(struct wn_inflate *s, void *to, size_t room, size_t *n, const char **why) {
  const int got = gzread(s->gz, to, room < INFLATE_MOST ? (unsigned)room : INFLATE_MOST);
  int code = Z_OK;
  const char *text = gzerror(s->gz, &code), *said = strncmp(text, "<fd:", 4) ? NULL : strstr(text, ">: ");
  *n = got < 0 ? 0 : (size_t)got;
  *why = NULL;
  if (got > 0 || (got == 0 && (code == Z_OK || code == Z_STREAM_END))) return WN_OK;
  *why = code == Z_BUF_ERROR ? "the gzip data are truncated"
         : code == Z_ERRNO   ? strerror(errno)
         : said              ? said + 3
                             : text; /* without zlib: no type for gzip streams */
  return code == Z_ERRNO ? WN_ERR_IO : WN_ERR_FORMAT;
}

uint64_t wn_inflate_done(const struct wn_inflate *s) {
  const z_off_t at = gzoffset(s->gz);
  return at < 0 ? 0 : (uint64_t)at;
}

static void inflate_end(struct wn_inflate *s) {
  gzclose(s->gz);
}

#else

struct wn_inflate {
  int fd;
  uint64_t done;
  unsigned char first; /* the first byte of the stream, once it was read */
};

static bool inflate_begin(struct wn_inflate *s, int fd) {
  *s = (struct wn_inflate){.fd = fd};
  return true;
}

wn_status wn_inflate_read(struct wn_inflate *s, void *to, size_t room, size_t *n, const char **why) {
  const unsigned char *bytes = to;
  ssize_t got;
  do got = read(s->fd, to, room < INFLATE_MOST ? room : INFLATE_MOST);
  while (got < 0 && errno == EINTR);
  *n = got < 0 ? 0 : (size_t)got;
  *why = got < 0 ? strerror(errno) : NULL;
  if (got <= 0) return got < 0 ? WN_ERR_IO : WN_OK;
  if (s->done == 0) s->first = bytes[0];
  const int second = s->done == 0 ? (got > 1 ? bytes[1] : -1) : s->done == 1 ? bytes[0] : -1;
  s->done += (uint64_t)got;
  if (s->first != 0x1F || second != 0x8B) return WN_OK;
  *why = "these are gzip data, which this build cannot read (WINNOW_ZLIB=OFF)";
  return WN_ERR_UNSUPPORTED;
}

uint64_t wn_inflate_done(const struct wn_inflate *s) {
  return s->done;
}

static void inflate_end(struct wn_inflate *s) {
  close(s->fd);
}

#endif

wn_status wn_inflate_open(wn_context *ctx, const char *path, int fd, struct wn_inflate **out) {
  const wn_status status = WN_ALLOC(ctx, "stream", 1, out);
  if (status == WN_OK && inflate_begin(*out, fd)) return WN_OK;
  close(fd);
  if (status != WN_OK) return status;
  wn_free(*out);
  *out = NULL;
  return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", path);
}

void wn_inflate_close(struct wn_inflate *s) {
  if (!s) return;
  inflate_end(s);
  wn_free(s);
}
