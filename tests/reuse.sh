# Sourced by scripts that build. After reuse_objects FINISHED FOLDER, builds take the objects that FINISHED, a build
# folder, compiled with the same command, through the launcher tests/reuse. FOLDER holds a file for each source with the
# object's path and the sorted arguments. FINISHED is brought up to date first; if that fails, or jq is not installed,
# nothing is reused. (A dry run of ninja is no test: it takes the check for new sources for a change.)
reuse_objects() { # FINISHED FOLDER
  export REUSE=$2 REUSE_LAUNCHER= CMAKE_C_COMPILER_LAUNCHER=$root/tests/reuse
  command -v ccache >/dev/null && REUSE_LAUNCHER=ccache
  mkdir -p "$REUSE"
  command -v jq >/dev/null && [ -f "$1/compile_commands.json" ] && ninja -C "$1" winnow libwinnow.so >/dev/null 2>&1 || return 0
  jq -r '.[] | [.directory, .file, .command] | @tsv' "$1/compile_commands.json" |
    awk -F '\t' -v out="$REUSE" '
      $2 ~ /\/(src|cli)\// {
        n = split($3, word, " "); kept = ""; object = ""
        for (i = 1; i <= n; i++) {
          if (word[i] == "-o") { object = word[++i]; continue }
          if (word[i] == "-c" || word[i] == "-isystem") { i++; continue }
          if (word[i] ~ /^-I/ || word[i] == "-Werror") continue
          gsub(/\\"/, "\"", word[i])
          kept = kept word[i] "\n"
        }
        name = $2; gsub("/", "%", name)
        sorter = "sort | tr \"\\n\" \" \" >\"" out "/sorted\""
        printf "%s", kept | sorter; close(sorter)
        getline line <(out "/sorted"); close(out "/sorted")
        print $1 "/" object "\n" line >(out "/" name); close(out "/" name)
      }'
}
