from meshnet_cli.main import main

main()
