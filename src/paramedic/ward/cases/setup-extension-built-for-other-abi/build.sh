# Build fused_norm for the C++ ABI given: 0 for torch wheels up to 2.5, 1 for later ones.
set -e
headers=$(python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
libraries=$(python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')/lib
g++ -std=c++17 -O1 -shared -fPIC -D_GLIBCXX_USE_CXX11_ABI=$1 -I "$headers" fused_norm.cpp -o fused_norm.so -L "$libraries" -lc10
