"""The programs ``embedkit-index`` (`main`), ``embedkit-model`` (`model`) and ``embedkit-serve`` (`serve`)."""
