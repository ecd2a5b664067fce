/* The only place under src/ that opens files (tools/check-silent). Opening never blocks and has no side effects, and
 * the type of the opened file is checked before it is read. */
#ifndef WN_BASE_OPEN_H
#define WN_BASE_OPEN_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "winnow/context.h"

/* Opens a regular file for reading; anything else (a folder, FIFO, socket, device) is WN_ERR_IO. *bytes: its size. */
wn_status wn_open_file(wn_context *ctx, const char *path, int *fd, uintmax_t *bytes);

/* Opens a source of text: a regular file, a pipe, a terminal, /dev/null, or "-" for standard input. A FIFO needs a
 * writer within WN_WRITER_SECONDS. *regular: whether it is a regular file; *bytes is then its size. */
enum { WN_WRITER_SECONDS = 5 };
wn_status wn_open_text(wn_context *ctx, const char *path, int *fd, bool *regular, uintmax_t *bytes);
/* Would wn_open_text treat the path as a pipe, a terminal or standard input, which can be read only once? */
bool wn_path_is_stream(const char *path);

/* Creates a file for reading and writing; follows no link. -1: see errno (EEXIST: it exists). */
int wn_open_new(const char *path);
/* Opens a regular file for appending, creating it if needed; follows no link. -1: see errno. */
int wn_open_append(const char *path);
/* The same for reading and writing anywhere. -1: see errno. */
int wn_open_again(const char *path);
/* For a device or a pipe that the user names as output; NULL: see errno. */
FILE *wn_open_output(const char *path);
int wn_open_folder(const char *path); /* for fsync; -1: see errno */
/* A folder or a regular file inside an open folder; follows no link. -1: see errno. */
int wn_open_folder_at(int dir, const char *name);
int wn_open_file_at(int dir, const char *name);
DIR *wn_open_entries(const char *path); /* NULL: see errno */
/* A shared object of this build. The libraries that it loads make their symbols visible to their own plug-ins. NULL:
 * see dlerror. */
void *wn_open_module(const char *path);
FILE *wn_open_system(const char *path); /* a kernel file in /proc or /sys; NULL: it is not there */

/* The kind of file that a mode means: "a FIFO", "a folder". */
const char *wn_file_kind(unsigned mode);

#endif
