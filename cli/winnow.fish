# Completion of winnow's commands, options, choices and recipe keys in fish, read from the program's own --help.
# Installed where fish looks (share/fish/vendor_completions.d/winnow.fish); or: source cli/winnow.fish

# NAME<tab>DESCRIPTION of what `winnow PATH... --help` lists under $argv[1], Commands or Options.
function __winnow_list
    set -l part $argv[1]
    $argv[2..-1] --help 2>/dev/null | awk -v part="$part:" '
        /^[A-Z].*:$/ { on = $1 == part; next }
        on && /^  [a-z-]/ { name = $1; sub(/^ +[^ ]+ +/, ""); sub(/^[A-Z][^ ]*  +/, ""); print name "\t" $0 }'
end

function __winnow_complete
    set -l words (commandline -opc)
    set -l path $words[1]
    for word in $words[2..-1]
        test "$word" = help -a (count $path) -eq 1; and continue
        string match -q -- '-*' $word; and break
        __winnow_list Commands $path | string replace -r '\t.*' '' | string match -q -- $word; or break
        set -a path $word
    end
    set -l previous $words[-1]
    if test "$previous" = --set
        $words[1] train --help 2>/dev/null | sed -n 's/^  \([a-z]*\.[a-z_0-9.]*\)  *\([a-z].*\)/\1=\t\2/p'
        return
    end
    if string match -q -- '--*' $previous
        set -l line ($path --help 2>/dev/null | awk -v option=$previous '
            /^  --/ { on = $1 == option } /^[^ ]/ { on = 0 } on { if (bar) sub(/^ +/, ""); bar = /[|]$/; printf "%s", $0 }')
        set -l choices (string match -r '\(([a-z0-9_-]+(?:\|[a-z0-9_-]+)+)\)' -- $line)
        if set -q choices[2]
            string split '|' -- $choices[2]
            return
        end
        if string match -qr -- "^  $previous [A-Z]" $line # a file, a folder or a number
            __fish_complete_path (commandline -ct)
            return
        end
    end
    set -l commands (__winnow_list Commands $path)
    if test (count $commands) -gt 0
        printf '%s\n' $commands
        return
    end
    string match -q -- '-*' (commandline -ct); or __fish_complete_path (commandline -ct)
    __winnow_list Options $path
end

complete -c winnow -f -a '(__winnow_complete)'
