# The run-time library of the site's old compiler.
set -e
mkdir -p apps/gcc/4.8/lib64
{
  echo 'GLIBCXX_3.4 { global: *; };'
  previous=GLIBCXX_3.4
  for n in $(seq 1 19); do echo "GLIBCXX_3.4.$n { } $previous;"; previous=GLIBCXX_3.4.$n; done
  echo 'CXXABI_1.3 { };'
  previous=CXXABI_1.3
  for n in $(seq 1 7); do echo "CXXABI_1.3.$n { } $previous;"; previous=CXXABI_1.3.$n; done
} >versions.map
echo 'int _libstdcxx_4_8;' | gcc -x c -shared -fPIC - -Wl,-soname,libstdc++.so.6 -Wl,--version-script=versions.map \
  -o apps/gcc/4.8/lib64/libstdc++.so.6
