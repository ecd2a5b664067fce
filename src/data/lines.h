/* Lines of a text file (mapped), or of a packed file (.gz, .zst) or a pipe (unpacked while reading), with their
 * position for messages. */
#ifndef WN_DATA_LINES_H
#define WN_DATA_LINES_H

#include "data/inflate.h"

struct wn_lines {
  const char *path; /* borrowed */
  struct wn_map map;
  struct wn_inflate *stream; /* of a packed file or a pipe; NULL: the file is mapped */
  char *buffer;              /* stream: [capacity], text in [begin, end) */
  size_t begin, end, capacity;
  bool ended;            /* stream: nothing left to read */
  size_t at;             /* map: the next byte */
  uint64_t line, offset; /* of the last line returned: its number from 1, its byte offset in the (unpacked) text */
  uint64_t next_offset;
  uint64_t file_bytes; /* on disk; 0: a pipe */
};
/* Is a file of this name packed? How: "gzip" or "zstd"; NULL: it is plain. */
const char *wn_lines_packed(const char *path);
/* An empty file is WN_ERR_FORMAT; packed data that this build cannot read are WN_ERR_UNSUPPORTED. "-" is standard
 * input; a pipe may carry packed data. */
wn_status wn_lines_open(wn_context *ctx, const char *path, struct wn_lines *l);
/* *text: the next line with its newline, borrowed until the next call; *bytes is 0 at the end. */
wn_status wn_lines_next(wn_context *ctx, struct wn_lines *l, const char **text, size_t *bytes);
uint64_t wn_lines_done(const struct wn_lines *l); /* bytes of the file on disk that were read */
void wn_lines_close(struct wn_lines *l);          /* allowed on {0} */

#endif
