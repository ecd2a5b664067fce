/* Files that the user names: the one place where the command line opens any. */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <winnow/context.h>

/* Standard input, output and error that the program was started without: their numbers are taken, so that no file which
 * is opened later gets one and then what is printed. Reading and writing them fails, as it would without. */
void cli_hold_standard(void);

/* Whether a file can be written there later: its folder is there and takes files, and no folder has its name. For what
 * is written at the end of long work. stream: a device, a pipe or "-", standard output, will do as well. 0, or 1 after
 * reporting. NULL is nothing to write. */
int cli_check_output(const char *path, bool stream);
/* A folder for results, with its parents; one that is there is taken as it is. 0, or 1 after reporting. */
int cli_make_folder(const char *path);
/* Opened to be written line by line; NULL after reporting. */
FILE *cli_open_output(const char *path);

/* A new file that its owner alone may read; NULL: it could not be made, or is there. */
FILE *cli_create_private(const char *path);

/* A whole text by wn_file_load ("-": standard input, a pipe), with a NUL after it; freed with wn_text_free. 0, or 1
 * after reporting. */
int cli_read_text(wn_context *ctx, const char *path, char **out, size_t *bytes);
/* The same of a text that is read line by line as C strings: a NUL byte, behind which nothing would be read, is
 * refused. */
int cli_read_lines(wn_context *ctx, const char *path, char **out);
/* A JSON file of winnow's own; NULL where it is missing or is none. New reference. */
json_t *cli_read_json(const char *path);

#endif
