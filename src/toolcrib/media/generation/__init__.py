"""Makes images and videos with services that charge for it, behind one small protocol each."""
