# Chromium, and Node.js with the npm packages for the web UI tests. The script installs these programs on demand.
# shellcheck shell=bash

browser_folder=$cluster_folder/../browser
# tests/browser/chromium.mjs searches for the same programs.
browser_names=(chromium chromium-browser google-chrome google-chrome-stable)

install_browser() {
    local lock=$browser_folder/package-lock.json link=$browser_folder/node_modules hash target
    if [[ -z ${CHROMIUM:-} && -z $(type -P "${browser_names[@]}") ]]; then
        require_root
        step "installed the Debian package chromium" install_missing chromium
    fi
    # Keeps the directory that `npm ci` has created, if the path contains such a directory instead of a symbolic link.
    [[ -L $link || ! -e $link ]] || return 0
    hash=$(sha256sum <"$lock")
    target=$cache_folder/tools/browser-${hash:0:16}
    if [[ -d $target ]]; then
        touch "$target"
    else
        build_missing_part services "tool that downloads packages"
        step "installed Node.js, Puppeteer and axe" fill_browser_folder "$lock" "$target"
        remove_old_builds browser
    fi
    ln -sfn "$target/node_modules" "$link"
}

# fill_browser_folder LOCK TARGET: downloads to a temporary directory and then renames the directory, so an interrupted
# download leaves no partial result.
fill_browser_folder() {
    local scratch
    scratch=$(mktemp -d "$cache_folder/tools/.browser.XXXXXX")
    mirror "$scratch/downloads" --npm "$1"
    install_npm_packages "$1" "$scratch/downloads/npm" "$scratch"
    rm -rf "$scratch/downloads"
    mv "$scratch" "$2"
}
