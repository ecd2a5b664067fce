/* The one way to open files: nothing else under src/ opens any (tools/check-silent). Whatever stands at a path, opening
 * it neither waits nor has an effect, and what was opened is looked at before it is read. */
#ifndef WN_BASE_OPEN_H
#define WN_BASE_OPEN_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "winnow/context.h"

/* A regular file, to be read: anything else (a folder, a FIFO, a socket, a device) is WN_ERR_IO. *bytes: its size. */
wn_status wn_open_file(wn_context *ctx, const char *path, int *fd, uintmax_t *bytes);

/* What a text may come from: a regular file, a pipe, a terminal, /dev/null; "-" is standard input. A FIFO must be
 * opened by a writer within WN_WRITER_SECONDS. *regular: whether it is a regular file, whose size is *bytes. */
enum { WN_WRITER_SECONDS = 5 };
wn_status wn_open_text(wn_context *ctx, const char *path, int *fd, bool *regular, uintmax_t *bytes);
/* Whether wn_open_text would take the path as a pipe, a terminal or standard input, which can be read once only. */
bool wn_path_is_stream(const char *path);

/* A new file, for reading and writing; no link is followed. -1: errno says why (EEXIST: there is one). */
int wn_open_new(const char *path);
/* A regular file that is written at its end, made where there is none; no link is followed. -1: errno says why. */
int wn_open_append(const char *path);
/* For a device or a pipe that the user names as output; NULL: errno says why. */
FILE *wn_open_output(const char *path);
int wn_open_folder(const char *path); /* for fsync; -1: errno says why */
/* A folder or a regular file in an open folder; no link is followed. -1: errno says why. */
int wn_open_folder_at(int dir, const char *name);
int wn_open_file_at(int dir, const char *name);
DIR *wn_open_entries(const char *path); /* NULL: errno says why */
/* A shared object of this build's own, whose libraries' symbols its own modules find; NULL: dlerror says why. */
void *wn_open_module(const char *path);
FILE *wn_open_system(const char *path); /* a file of the kernel's, in /proc or /sys; NULL: it is not there */

/* "a FIFO", "a folder": what the mode of a file says. */
const char *wn_file_kind(unsigned mode);

#endif
