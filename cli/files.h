/* Files that the user names. Only cli/files.c opens files on the command line's side. */
#ifndef CLI_FILES_H
#define CLI_FILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <winnow/context.h>

/* If the program was started without standard input, output or error, takes their descriptors, so that no file opened
 * later gets one and receives what is printed. Reading and writing them still fails. */
void cli_hold_standard(void);

/* Checks that a file can be written later, at the end of long work: its folder exists and is writable, and no folder
 * has its name. stream: a device, a pipe or "-" (standard output) is allowed too. path NULL: nothing to check. 0, or 1
 * after reporting. */
int cli_check_output(const char *path, bool stream);
/* Makes a folder and its parents; an existing folder is fine. 0, or 1 after reporting. */
int cli_make_folder(const char *path);
/* Opens a file for writing line by line; NULL after reporting. */
FILE *cli_open_output(const char *path);

/* The bytes of a file, or of the safetensors files in a folder; 0: there is none. */
uint64_t cli_weights_bytes(const char *path);
/* Opens a file that only its owner and group may read, for lines at its end; NULL: errno says why not. */
FILE *cli_open_append(const char *path);
/* Creates a new file that only its owner may read; NULL: it exists or could not be created. */
FILE *cli_create_private(const char *path);

/* Reads a whole text with wn_file_load ("-": standard input, a pipe), with a NUL after it; freed with wn_text_free. 0,
 * or 1 after reporting. */
int cli_read_text(wn_context *ctx, const char *path, char **out, size_t *bytes);
/* The same for a text whose lines are used as C strings: a NUL byte in it is refused. */
int cli_read_lines(wn_context *ctx, const char *path, char **out);
/* The next line of such a text that is not blank, cut off by a NUL; NULL: there is none. *at moves on, and *number
 * becomes the line's, from 1. */
char *cli_next_line(char **at, int64_t *number);
/* Reads a JSON file that winnow wrote; NULL if it is missing or not JSON. A new reference. */
json_t *cli_read_json(const char *path);

#endif
